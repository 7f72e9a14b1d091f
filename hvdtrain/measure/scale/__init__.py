"""A model of scale: from measurements of small jobs to the speed, time and cost of large ones."""
