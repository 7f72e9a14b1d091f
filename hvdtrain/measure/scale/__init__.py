"""A model of scale: from measurements of small jobs to the time of a step of large ones."""
