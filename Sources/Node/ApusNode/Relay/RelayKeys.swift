package import ApusCore
package import ApusTraversal
import Crypto
import Foundation

/// The relay's keys, of which every node of a cluster has the same (D8).
///
/// They come from one root, the cluster's key, each under its own name, so that none tells anything of
/// another or of the root. A nonce that one node made is good at all, and so is a credential that anyone issued
/// who has the root. A static secret takes the place of the derived one where an operator's own service issues
/// credentials.
package struct RelayKeys: Sendable {
    /// The key of stateless nonces, 32 bytes.
    package let nonceKey: [UInt8]
    /// The key of mobility tickets, 32 bytes.
    package let ticketKey: [UInt8]
    /// What shows an operator of a relay that runs alone: who can read its key.
    package let operatorToken: String
    package let credentials: RelayCredentials
    /// Users that have a key of their own.
    package let users: StaticUsers
    /// Files with secrets that every user of the machine may read.
    package let exposedFiles: [String]

    /// - Parameter root: 32 random bytes.
    /// - Throws: 10022 where the file of the static secret or that of the users cannot be read, may be written by
    ///   others than its owner, or is not valid.
    package init(root: [UInt8], configuration: RelayConfiguration) throws(ApusError) {
        nonceKey = Self.derive(root, "apus relay nonces")
        ticketKey = Self.derive(root, "apus relay tickets")
        operatorToken = Self.operatorToken(root: root)
        var exposed: [String] = []
        credentials = try Self.credentials(root: root, configuration: configuration, &exposed)
        users = try Self.users(configuration, &exposed)
        exposedFiles = exposed
    }

    /// As ``operatorToken``, without what else the configuration names.
    static func operatorToken(root: [UInt8]) -> String {
        derive(root, "apus relay operators").map { String($0, radix: 16) }.joined(separator: "-")
    }

    /// As ``credentials``, without what else the configuration names.
    static func credentials(root: [UInt8], configuration: RelayConfiguration) throws(ApusError) -> RelayCredentials {
        var exposed: [String] = []
        return try credentials(root: root, configuration: configuration, &exposed)
    }

    private static func credentials(
        root: [UInt8], configuration: RelayConfiguration, _ exposed: inout [String]
    ) throws(ApusError) -> RelayCredentials {
        var secrets = configuration.secret.isEmpty ? [] : [Array(configuration.secret.utf8)]
        if !configuration.secretFile.isEmpty { secrets = try Self.secrets(configuration.secretFile, &exposed) }
        return RelayCredentials(
            realm: configuration.realm, current: secrets.first ?? Self.derive(root, "apus relay credentials"),
            previous: secrets.dropFirst().first)
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
        HKDF<SHA256>.deriveKey(
            inputKeyMaterial: SymmetricKey(data: root), info: Data(name.utf8), outputByteCount: 32
        ).withUnsafeBytes { Array($0) }
    }

    /// The first line is the secret of today; a second one is that of before, which is still taken.
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
