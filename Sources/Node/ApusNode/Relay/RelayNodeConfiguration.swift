package import ApusCore
package import ApusTraversal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

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
    package private(set) var keys: [ConfigurationKey] = []

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

    /// The relay's keys; nothing is made. Commands of operators, who may be other users than the relay's, and reloads
    /// read them so.
    ///
    /// - Throws: 10021 where the key is not there or cannot be read, 10022 where the secret or the users cannot be
    ///   read.
    package func relayKeys() throws(ApusError) -> RelayKeys { try RelayKeys(root: root(), configuration: relay) }

    /// The same at the relay's start: the root is made where it is missing, readable by its owner alone.
    ///
    /// - Throws: 10021 where the data directory cannot be written; as ``relayKeys()``.
    package func makeRelayKeys() throws(ApusError) -> RelayKeys {
        var facts = stat()
        if stat(keyFile, &facts) != 0, errno == ENOENT { try makeRoot() }
        return try relayKeys()
    }

    /// What issues credentials that the relay takes. Throws as ``relayKeys()``; a static secret needs no key.
    package func relayCredentials() throws(ApusError) -> RelayCredentials {
        let needsRoot = relay.secret.isEmpty && relay.secretFile.isEmpty
        return try RelayKeys.credentials(root: needsRoot ? root() : [], configuration: relay)
    }

    /// What shows the relay's operator. Throws 10021 as ``relayKeys()``.
    package func relayOperatorToken() throws(ApusError) -> String { RelayKeys.operatorToken(root: try root()) }

    private func root() throws(ApusError) -> [UInt8] {
        let descriptor = open(keyFile, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else {
            let reason = errno
            let words =
                reason == ENOENT
                ? "is not there: the relay makes it at its first start, as its own user"
                : "cannot be read (\(String(cString: strerror(reason)))): only the relay's user may, and root"
            throw ApusError(.storageFailed, "\(keyFile) \(words)")
        }
        let root = try? FileHandle(fileDescriptor: descriptor, closeOnDealloc: true).readToEnd()
        guard let root, root.count == 32 else { throw ApusError(.storageFailed, "\(keyFile) does not hold 32 bytes") }
        return Array(root)
    }

    /// Makes the key whole or not at all; one that another process made meanwhile stays.
    private func makeRoot() throws(ApusError) {
        do {
            try FileManager.default.createDirectory(atPath: dataDirectory, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "\(dataDirectory) cannot be made: \(error.localizedDescription)")
        }
        let fresh = "\(keyFile).new-\(getpid())"
        unlink(fresh)
        defer { unlink(fresh) }
        let descriptor = open(fresh, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0o600)
        let root = Self.randomRoot()
        let isWritten = descriptor >= 0 && write(descriptor, root, root.count) == root.count && fsync(descriptor) == 0
        if descriptor >= 0 { close(descriptor) }
        guard isWritten, link(fresh, keyFile) == 0 || errno == EEXIST else {
            throw ApusError(.storageFailed, "\(keyFile) cannot be written: \(String(cString: strerror(errno)))")
        }
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
