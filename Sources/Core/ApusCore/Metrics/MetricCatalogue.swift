/// A metric family that a node exports: its name, kind, unit, labels and help text.
package struct MetricDescription: Sendable, Hashable {
    /// The type of the family in Prometheus' text format.
    package enum Kind: String, Sendable, Hashable {
        case counter, gauge, histogram
    }

    /// A label of the family, and the values that it takes.
    package struct Label: Sendable, Hashable {
        package let name: String
        /// The values, for a reader.
        package let values: String

        package init(_ name: String, _ values: String) {
            self.name = name
            self.values = values
        }
    }

    package let name: String
    package let kind: Kind
    /// What one unit of the value is: `bytes`, `seconds`, or what is counted.
    package let unit: String
    package let labels: [Label]
    /// One sentence, for `# HELP` and docs/reference/metrics.md.
    package let help: String

    package init(name: String, kind: Kind, unit: String, labels: [Label] = [], help: String) {
        self.name = name
        self.kind = kind
        self.unit = unit
        self.labels = labels
        self.help = help
    }

    package static func counter(_ name: String, _ unit: String, _ help: String) -> Self {
        Self(name: name, kind: .counter, unit: unit, help: help)
    }

    package static func counter(_ name: String, _ unit: String, _ labels: [Label], _ help: String) -> Self {
        Self(name: name, kind: .counter, unit: unit, labels: labels, help: help)
    }

    package static func gauge(_ name: String, _ unit: String, _ help: String) -> Self {
        Self(name: name, kind: .gauge, unit: unit, help: help)
    }

    package static func gauge(_ name: String, _ unit: String, _ labels: [Label], _ help: String) -> Self {
        Self(name: name, kind: .gauge, unit: unit, labels: labels, help: help)
    }

    package static func histogram(_ name: String, _ unit: String, _ help: String) -> Self {
        Self(name: name, kind: .histogram, unit: unit, help: help)
    }

    package static func histogram(_ name: String, _ unit: String, _ labels: [Label], _ help: String) -> Self {
        Self(name: name, kind: .histogram, unit: unit, labels: labels, help: help)
    }
}

/// The metric families of a node without those of its services, which stand beside each service (D13).
///
/// `/metrics` takes its help texts from here and from the services, and docs/reference/metrics.md is made from both. A
/// tidy test compares them with the instruments in the sources, in both directions.
package enum MetricCatalogue {
    /// The metrics of one part of a node.
    package struct Section: Sendable {
        package let title: String
        package let metrics: [MetricDescription]

        package init(title: String, metrics: [MetricDescription]) { (self.title, self.metrics) = (title, metrics) }
    }

    /// These metrics, in the order of the reference.
    package static let sections: [Section] = [
        Section(title: "Cluster", metrics: cluster),
        Section(title: "Ownership in etcd", metrics: etcd),
        Section(title: "Heartbeats", metrics: heartbeats),
        Section(title: "Links between nodes", metrics: transport),
        Section(title: "Entities and reminders", metrics: entities),
        Section(title: "Replication", metrics: replication),
        Section(title: "Records", metrics: storage),
        Section(title: "Objects", metrics: objects),
        Section(title: "Sessions", metrics: sessions),
        Section(title: "Channels", metrics: channels),
        Section(title: "Client listener", metrics: gateway),
        Section(title: "HTTP", metrics: http),
        Section(title: "API", metrics: api),
        Section(title: "Relay", metrics: relay),
        Section(title: "Node and process", metrics: process),
    ]

    /// These metrics by name.
    package static let byName = byName(sections)

    /// The metrics of sections by name.
    package static func byName(_ sections: [Section]) -> [String: MetricDescription] {
        Dictionary(uniqueKeysWithValues: sections.flatMap(\.metrics).map { ($0.name, $0) })
    }
}
