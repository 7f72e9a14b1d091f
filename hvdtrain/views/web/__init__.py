"""The web page of `hvdtrain watch --serve`: runs, their curves and their ranks, as they are now."""
