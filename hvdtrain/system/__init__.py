"""The machine and the job this process runs in; standard library only, and msgspec where a file is decoded."""
