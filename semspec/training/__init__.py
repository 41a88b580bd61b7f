"""How probes, datastores and calibrations are made: offline work, in stages that resume."""
