"""The release report: collected from the store, rendered as HTML, Markdown and JSON."""
