package import ApusConfiguration
package import ApusCore
package import ApusRelayService
package import ApusTraversal
import Foundation

#if canImport(Glibc)
import Glibc
#elseif canImport(Musl)
import Musl
#endif

/// The configuration of a standalone relay, from one YAML file and the environment: `cluster-configs/relay-only.yaml`.
/// The relay belongs to no cluster. Its keys are derived from ``keyFile``, which it creates at its first start. Nonces,
/// and credentials without a static secret, therefore survive a restart.
package struct RelayNodeConfiguration: Sendable {
    /// The directory of the relay's own state; created if it is missing.
    package var dataDirectory: String
    package var logLevel: String
    /// The address of the listener for operators; nil for none.
    package var http: HostPort?
    package var relay: RelayConfiguration
    /// All keys, in the order of the reference.
    package private(set) var keys: [ConfigurationKey] = []

    /// Reads a file. Throws 10022 with the file, the line and the key.
    package init(
        file: String, environment: [String: String] = ProcessInfo.processInfo.environment
    ) throws(ApusError) {
        guard let yaml = try? String(contentsOfFile: file, encoding: .utf8) else {
            throw ApusError(.configurationInvalid, "the configuration \(file) cannot be read")
        }
        let folder = URL(fileURLWithPath: file).deletingLastPathComponent().path
        var reader = try ConfigurationReader(yaml: yaml, source: file, folder: folder, environment: environment)
        dataDirectory = try reader.path("data_directory")
        logLevel = try reader.choice(
            "log_level", of: ["trace", "debug", "info", "notice", "warning", "error"], default: "info")
        let endpoint = try reader.string("http", default: "")
        http = HostPort(endpoint)
        guard endpoint.isEmpty || http != nil else {
            throw reader.invalid("http", "HOST:PORT is expected, not '\(endpoint)'")
        }
        relay = try RelayConfiguration(&reader)
        try reader.finish()
        keys = reader.knownKeys
    }

    private var keyFile: String { "\(dataDirectory)/relay.key" }

    /// The relay's keys. Nothing is created: operators' commands, which may run as another user than the relay's, and
    /// reloads use this method.
    /// - Throws: 10021 if the key does not exist or cannot be read, 10022 if the secret or the users cannot be read.
    package func relayKeys() throws(ApusError) -> RelayKeys { try RelayKeys(root: root(), configuration: relay) }

    /// The relay's keys at its start. The root is created if it is missing, readable only by its owner.
    /// - Throws: 10021 if the data directory cannot be written; otherwise as ``relayKeys()``.
    package func makeRelayKeys() throws(ApusError) -> RelayKeys {
        var facts = stat()
        if stat(keyFile, &facts) != 0, errno == ENOENT { try makeRoot() }
        return try relayKeys()
    }

    /// Issues credentials that the relay accepts. Throws as ``relayKeys()``; a static secret needs no key.
    package func relayCredentials() throws(ApusError) -> RelayCredentials {
        let needsRoot = relay.secret.isEmpty && relay.secretFile.isEmpty
        return try RelayKeys.credentials(root: needsRoot ? root() : [], configuration: relay)
    }

    /// The token of the relay's operator. Throws 10021 as ``relayKeys()``.
    package func relayOperatorToken() throws(ApusError) -> String { RelayKeys.operatorToken(root: try root()) }

    private func root() throws(ApusError) -> [UInt8] {
        let descriptor = open(keyFile, O_RDONLY | O_CLOEXEC)
        guard descriptor >= 0 else {
            let reason = errno
            let words =
                reason == ENOENT
                ? "does not exist: the relay creates it at its first start, as its own user"
                : "cannot be read (\(String(cString: strerror(reason)))): only the relay's user and root may read it"
            throw ApusError(.storageFailed, "\(keyFile) \(words)")
        }
        let root = try? FileHandle(fileDescriptor: descriptor, closeOnDealloc: true).readToEnd()
        guard let root, root.count == 32 else { throw ApusError(.storageFailed, "\(keyFile) does not hold 32 bytes") }
        return Array(root)
    }

    /// Creates the key atomically. If another process has created one in the meantime, that one stays.
    private func makeRoot() throws(ApusError) {
        do {
            try FileManager.default.createDirectory(atPath: dataDirectory, withIntermediateDirectories: true)
        } catch {
            throw ApusError(.storageFailed, "\(dataDirectory) cannot be created: \(error.localizedDescription)")
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

    /// 32 random bytes from the system.
    package static func randomRoot() -> [UInt8] {
        var generator = SystemRandomNumberGenerator()
        return (0..<32).map { _ in UInt8.random(in: .min ... .max, using: &generator) }
    }
}
