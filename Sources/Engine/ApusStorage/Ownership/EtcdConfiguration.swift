package import ApusCore

/// The configuration of the ownership store in etcd (D4, D9). Values only: `ApusEtcd` has the store.
package struct EtcdConfiguration: Sendable, Equatable {
    /// The most endpoints.
    package static let endpointCountMax = 16

    /// The endpoints of etcd's members, in the order in which they are tried.
    package var endpoints: [EtcdEndpoint] = []
    /// The start of all keys. The cluster's name and a slash follow.
    package var prefix = "apus/"
    /// The time that a read or a swap may take, including attempts at other endpoints.
    package var timeout: Duration = .seconds(1)
    /// The interval at which the revision is polled, and at which a watch that has no changes must answer. A watch that
    /// is silent for three intervals is opened again.
    package var pollInterval: Duration = .seconds(5)
    /// The wait before a watch is opened again, after the first failure. It doubles with each further one.
    package var retryDelayMin: Duration = .milliseconds(100)
    /// The longest wait before a watch is opened again.
    package var retryDelayMax: Duration = .seconds(5)
    /// A PEM file with the authority that signed the certificates of etcd's members. If empty, the system's authorities
    /// are used. Read for each connection, as the other files are.
    package var authorityFile = ""
    /// A PEM file with this node's certificate for etcd and its chain. If empty, the node shows none.
    package var certificateFile = ""
    /// A PEM file with the certificate's key.
    package var keyFile = ""
    /// The user at etcd. If empty, the node does not authenticate by password.
    package var user = ""
    /// A file with the user's password; a line end after it is ignored.
    package var passwordFile = ""

    package init() {}
}

/// The address of one member of etcd for its clients: `https://HOST:PORT` or `http://HOST:PORT`.
package struct EtcdEndpoint: Sendable, Hashable, CustomStringConvertible {
    /// True with TLS.
    package var isSecure: Bool
    package var address: HostPort

    package init(isSecure: Bool, address: HostPort) {
        self.isSecure = isSecure
        self.address = address
    }

    /// Parses a URL; nil if the text does not have the form, or names port 0.
    package init?(_ text: String) {
        let schemes = [("https://", true), ("http://", false)]
        guard let (scheme, isSecure) = schemes.first(where: { text.hasPrefix($0.0) }) else { return nil }
        let rest = String(text.dropFirst(scheme.count))
        guard let address = HostPort(rest.hasSuffix("/") ? String(rest.dropLast()) : rest), address.port > 0,
            !address.host.contains("/"), !address.host.contains("@")
        else { return nil }
        self.init(isSecure: isSecure, address: address)
    }

    package var description: String { "\(isSecure ? "https" : "http")://\(address)" }
}
