package import ApusCore

extension ProductService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_schema_refused_total", "requests",
            "Writes, reports and actions that the schema of the device's product did not allow (20101, 20102)."),
        .counter(
            "apus_schema_repeated_total", "requests",
            "Writes and reports that were checked again: the device had another product than this node knew."),
        .counter(
            "apus_schema_reads_total", "reads", "Reads of records for schemas and products that had expired."),
    ]
}
