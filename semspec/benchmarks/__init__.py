"""Problems and their grading: one file per benchmark."""
