"""The report's page: one self-contained HTML file."""
