import ApusConfiguration
package import ApusCore
import ApusCrypto
package import ApusTraversal
import Foundation

/// The relay's keys, which are the same at every node of a cluster (D8).
/// They are derived from one root, the cluster's key, each under its own name, so that no key reveals another one or
/// the root. A nonce of one node is valid at every node, and so is a credential from anyone who has the root. A static
/// secret replaces the derived one if an operator's own service issues credentials.
package struct RelayKeys: Sendable {
    /// The key of stateless nonces, 32 bytes.
    package let nonceKey: [UInt8]
    /// The key of mobility tickets, 32 bytes.
    package let ticketKey: [UInt8]
    /// The token of an operator of a standalone relay: whoever can read the relay's key can derive it.
    package let operatorToken: String
    package let credentials: RelayCredentials
    /// Users with keys of their own.
    package let users: StaticUsers
    /// Files with secrets that every user of the machine can read.
    package let exposedFiles: [String]

    /// - Parameters:
    ///   - root: 32 random bytes.
    ///   - other: the other root while the cluster's key is changed. Credentials that are derived from it are accepted.
    /// - Throws: 10022 if the file of the static secret or of the users cannot be read, may be written by its group or
    ///   others, or is not valid.
    package init(root: [UInt8], other: [UInt8]? = nil, configuration: RelayConfiguration) throws(ApusError) {
        nonceKey = Self.derive(root, "apus relay nonces")
        ticketKey = Self.derive(root, "apus relay tickets")
        operatorToken = Self.operatorToken(root: root)
        var exposed: [String] = []
        credentials = try Self.credentials(root: root, other: other, configuration: configuration, &exposed)
        users = try Self.users(configuration, &exposed)
        exposedFiles = exposed
    }

    /// ``operatorToken``, without reading the files of the configuration.
    package static func operatorToken(root: [UInt8]) -> String {
        derive(root, "apus relay operators").map { String($0, radix: 16) }.joined(separator: "-")
    }

    /// ``credentials``, without reading the users.
    package static func credentials(root: [UInt8], configuration: RelayConfiguration) throws(ApusError)
        -> RelayCredentials
    {
        var exposed: [String] = []
        return try credentials(root: root, other: nil, configuration: configuration, &exposed)
    }

    private static func credentials(
        root: [UInt8], other: [UInt8]?, configuration: RelayConfiguration, _ exposed: inout [String]
    ) throws(ApusError) -> RelayCredentials {
        var secrets = configuration.secret.isEmpty ? [] : [Array(configuration.secret.utf8)]
        if !configuration.secretFile.isEmpty { secrets = try Self.secrets(configuration.secretFile, &exposed) }
        if secrets.isEmpty {
            secrets = ([root] + (other.map { [$0] } ?? [])).map { Self.derive($0, "apus relay credentials") }
        }
        return RelayCredentials(
            realm: configuration.realm, current: secrets[0], previous: secrets.dropFirst().first)
    }

    private static func users(
        _ configuration: RelayConfiguration, _ exposed: inout [String]
    ) throws(ApusError) -> StaticUsers {
        let path = configuration.usersFile
        guard !path.isEmpty else { return StaticUsers() }
        let file = try PrivateFile(path, what: "users")
        if file.isReadableByAll { exposed.append(path) }
        return try StaticUsers(file.text, source: path, realm: configuration.realm)
    }

    private static func derive(_ root: [UInt8], _ name: String) -> [UInt8] {
        HKDF.deriveKey(
            inputKeyMaterial: root, info: Data(name.utf8), outputByteCount: 32
        ).withUnsafeBytes { Array($0) }
    }

    /// The first line is the current secret. A second line is the previous one, which is still accepted.
    private static func secrets(_ path: String, _ exposed: inout [String]) throws(ApusError) -> [[UInt8]] {
        let file = try PrivateFile(path, what: "secret")
        if file.isReadableByAll { exposed.append(path) }
        let lines = file.text.split(whereSeparator: \.isNewline).prefix(2).map {
            $0.trimmingCharacters(in: .whitespaces)
        }
        guard !lines.isEmpty, lines.allSatisfy({ !$0.isEmpty }) else {
            throw ApusError(.configurationInvalid, "the relay's secret \(path) must have a secret in its first line")
        }
        return lines.map { Array($0.utf8) }
    }
}
