"""The benchmark: model x task x sampler to rows, tables, figures and a report."""
