"""The only package that imports a framework. Each framework has a package with the same file names."""
