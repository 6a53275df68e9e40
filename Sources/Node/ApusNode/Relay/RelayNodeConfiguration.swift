package import ApusCore
import Foundation

/// A node that is a relay and nothing more, from one YAML file and the environment: `cluster-configs/relay-only.yaml`.
///
/// It belongs to no cluster. Its keys derive from ``keyFile``, which it makes at its first start, unless there is
/// a static secret; so nonces and credentials outlive a restart.
package struct RelayNodeConfiguration: Sendable {
    /// The node's own state; made where it is missing.
    package var dataDirectory: String
    package var logLevel: String
    /// Where operators come; nil for no door.
    package var http: HostPort?
    package var relay: RelayConfiguration
    /// Every key, in the order of the reference.
    package private(set) var keys: [String] = []

    /// Reads a file. Throws 10022 with file, line and key.
    package init(
        file: String, environment: [String: String] = ProcessInfo.processInfo.environment
    ) throws(ApusError) {
        guard let yaml = try? String(contentsOfFile: file, encoding: .utf8) else {
            throw ApusError(.configurationInvalid, "the configuration \(file) cannot be read")
        }
        let folder = URL(fileURLWithPath: file).deletingLastPathComponent().path
        func path(_ text: String) -> String { text.hasPrefix("/") ? text : "\(folder)/\(text)" }
        var reader = try ConfigurationReader(yaml: yaml, source: file, environment: environment)
        dataDirectory = path(try reader.string("data_directory"))
        logLevel = try reader.choice(
            "log_level", of: ["trace", "debug", "info", "notice", "warning", "error"], default: "info")
        let door = try reader.string("http", default: "")
        http = HostPort(door)
        guard door.isEmpty || http != nil else { throw reader.invalid("http", "HOST:PORT is expected, not '\(door)'") }
        relay = try RelayConfiguration(&reader, path: path)
        try reader.finish()
        keys = reader.knownKeys
    }

    private var keyFile: String { "\(dataDirectory)/relay.key" }

    /// The relay's keys; their root is made where it is missing, readable by its owner alone.
    ///
    /// - Throws: 10021 where the data directory cannot be written, 10022 where the secret cannot be read.
    package func relayKeys() throws(ApusError) -> RelayKeys {
        let files = FileManager.default
        if let root = files.contents(atPath: keyFile) {
            guard root.count == 32 else { throw ApusError(.storageFailed, "\(keyFile) does not hold 32 bytes") }
            return try RelayKeys(root: Array(root), configuration: relay)
        }
        let root = Self.randomRoot()
        do {
            try files.createDirectory(atPath: dataDirectory, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "\(dataDirectory) cannot be made: \(error.localizedDescription)")
        }
        guard files.createFile(atPath: keyFile, contents: Data(root), attributes: [.posixPermissions: 0o600]) else {
            throw ApusError(.storageFailed, "\(keyFile) cannot be written")
        }
        return try RelayKeys(root: root, configuration: relay)
    }

    /// 32 bytes from the system.
    package static func randomRoot() -> [UInt8] {
        var generator = SystemRandomNumberGenerator()
        return (0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) }
    }
}

extension NodeConfiguration {
    /// The relay's keys of a cluster's node. Throws 10022 where the cluster's key or the secret cannot be read.
    package func relayKeys() throws(ApusError) -> RelayKeys {
        try RelayKeys(root: NodeParts.clusterKey(clusterKeyFile), configuration: relay)
    }
}
