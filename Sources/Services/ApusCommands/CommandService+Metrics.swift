package import ApusCore

extension CommandService {
    package static let metrics: [MetricDescription] = [
        .counter(
            "apus_command_deliveries_total", "commands",
            "Commands that were handed to connections of devices, repetitions included."),
        .gauge("apus_command_connections", "connections", "Connections of devices that take commands at this node."),
        .gauge("apus_command_waiting", "requests", "Requests at this node that wait for a device."),
    ]
}
