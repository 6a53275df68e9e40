package import ApusClientAPI
import ApusConfiguration
import ApusCore

/// What each service has read from a node's configuration.
package struct ServiceConfigurations: Sendable {
    private var entries: [(service: ObjectIdentifier, configuration: any ServiceConfiguration)] = []

    package init() {}

    /// Throws 10022 with file, line and key.
    mutating func read(
        _ reader: inout ConfigurationReader, of services: [any NodeService.Type]
    ) throws(ApusError) {
        entries = []
        for service in services { entries.append((ObjectIdentifier(service), try Self.read(&reader, of: service))) }
    }

    private static func read<S: NodeService>(
        _ reader: inout ConfigurationReader, of service: S.Type
    ) throws(ApusError) -> any ServiceConfiguration {
        var configuration = S.Configuration()
        try configuration.read(&reader)
        return configuration
    }

    /// What a service has read; its defaults if it was not asked.
    package subscript<S: NodeService>(service: S.Type) -> S.Configuration {
        let entry = entries.first { $0.service == ObjectIdentifier(service) }
        return entry?.configuration as? S.Configuration ?? S.Configuration()
    }
}
