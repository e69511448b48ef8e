"""What runs beside the work: the roofline model and the exporters that publish it."""
