package import ApusCore

/// Where the spans of this node are sent, and which traces are recorded.
package struct TracingConfiguration: Sendable {
    /// A collector that takes OTLP over plain HTTP.
    package struct Endpoint: Sendable, Hashable {
        package var address: HostPort
        /// The path of traces below that of the collector.
        package var path: String

        package init(address: HostPort, path: String = "/v1/traces") { (self.address, self.path) = (address, path) }

        /// Parses `http://HOST:PORT`, with a path or without; nil if the text does not have that form.
        package init?(_ text: String) {
            let scheme = "http://"
            guard text.hasPrefix(scheme) else { return nil }
            let rest = text.dropFirst(scheme.count)
            let slash = rest.firstIndex(of: "/") ?? rest.endIndex
            let path = rest[slash...]
            guard let address = HostPort(String(rest[..<slash])), address.port > 0,
                path.utf8.allSatisfy({ (0x21...0x7e).contains($0) })
            else { return nil }
            self.init(address: address, path: String(path.hasSuffix("/") ? path.dropLast() : path) + "/v1/traces")
        }
    }

    /// Nil: this node does not trace. Key `tracing.endpoint`.
    package var endpoint: Endpoint?
    /// Of the traces that begin at this node, 0 to 1. One in a hundred: at the 2,000 requests a second that one account
    /// may make, that is 20 traces a second, which a collector on the same machine takes. Key `tracing.sample_ratio`.
    package var sampleRatio = 0.01
    /// Spans that wait for the collector; a further one is dropped. Key `tracing.queue_max`.
    package var queueMax = 4096

    package init() {}
}
