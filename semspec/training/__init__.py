"""Make probes, datastores and calibrations: offline work, in stages that resume."""
