"""Problems and their grading: one file for one benchmark."""
