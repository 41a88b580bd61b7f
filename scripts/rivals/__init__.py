"""The engines that semspec is measured beside, one file each, all behind ``rivals.base.Rival``."""
