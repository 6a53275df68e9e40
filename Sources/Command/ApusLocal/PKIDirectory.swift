package import ApusCore
import ApusCrypto
package import ApusSessions
import ApusTransport
import Foundation

/// A cluster's keys and certificates in one directory with mode 0700; keys have mode 0600.
/// `ca.pem`/`ca.key`, `NODE.pem`/`NODE.key`, `clients.pem`/`clients.key`, `cluster.key` (32 random bytes),
/// `token.key`/`token.pub`. Existing files are kept, so a node can be added later. `issued/` has a copy of every
/// certificate that was issued, by which it can be revoked later.
package struct PKIDirectory: Sendable {
    /// The directory, absolute.
    package let path: String

    /// A directory by its path. Nothing is read or created.
    package init(path: String) { self.path = path }

    /// The authority's certificate, PEM.
    package var authority: String { "\(path)/ca.pem" }
    /// The key that signs tokens, PEM.
    package var tokenPrivateKey: String { "\(path)/token.key" }
    /// The 32 bytes that the nodes share.
    package var clusterKey: String { "\(path)/cluster.key" }

    /// Creates missing files.
    /// - Parameters:
    ///   - servers: names of other servers, such as a database, whose certificates name no node.
    ///   - hosts: names and addresses of nodes and client endpoints for the certificates, beside the local ones.
    /// - Returns: the created files.
    /// - Throws: 10021 if a file cannot be written, 10022 if the existing authority cannot be read.
    package func make(cluster: ClusterID, nodes: [NodeName], servers: [NodeName] = [], hosts: [String])
        throws(ApusError)
        -> [String]
    {
        try makeFolder()
        var made: [String] = []
        let authority = try issue("ca", made: &made) { () throws(ApusError) in
            try ClusterPKI.makeAuthority(cluster: cluster)
        }
        for node in nodes {
            _ = try issue(node.rawValue, made: &made) { () throws(ApusError) in
                try ClusterPKI.issueNode(node, hosts: hosts, authority: authority)
            }
        }
        for server in servers {
            _ = try issue(server.rawValue, made: &made) { () throws(ApusError) in
                try ClusterPKI.issueClientEndpoint(hosts: hosts, authority: authority)
            }
        }
        _ = try issue("clients", made: &made) { () throws(ApusError) in
            try ClusterPKI.issueClientEndpoint(hosts: hosts, authority: authority)
        }
        if !FileManager.default.fileExists(atPath: tokenPrivateKey) {
            let key = P256.Signing.PrivateKey()
            let pair = ClusterPKI.Issued(
                certificatePEM: key.publicKey.pemRepresentation, privateKeyPEM: key.pemRepresentation)
            try ClusterPKI.write(pair, certificate: "\(path)/token.pub", key: tokenPrivateKey)
            made += ["token.pub", "token.key"]
        }
        if !FileManager.default.fileExists(atPath: clusterKey) {
            let bytes = SymmetricKey.random().withUnsafeBytes { Data($0) }  // SAFETY: copied in the closure.
            guard
                FileManager.default.createFile(
                    atPath: clusterKey, contents: bytes, attributes: [.posixPermissions: 0o600])
            else { throw ApusError(.storageFailed, "\(clusterKey) cannot be written") }
            made.append("cluster.key")
        }
        return made
    }

    /// Signs a token with the directory's token key.
    /// - Throws: 10021 if there is no key, 10022 if it is not valid.
    package func mint(_ claims: TokenClaims) async throws(ApusError) -> String {
        let key: String
        do {
            key = try String(contentsOfFile: tokenPrivateKey, encoding: .utf8)
        } catch {
            throw ApusError(
                .storageFailed, "the token key \(tokenPrivateKey) cannot be read: \(error.localizedDescription)")
        }
        return try TokenSigner(privateKeyPEM: key).sign(claims)
    }

    private func makeFolder() throws(ApusError) {
        do {
            try FileManager.default.createDirectory(
                atPath: path, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
        } catch {
            throw ApusError(.storageFailed, "\(path) cannot be created: \(error.localizedDescription)")
        }
    }

    private func issue(
        _ name: String, made: inout [String], _ make: () throws(ApusError) -> ClusterPKI.Issued
    ) throws(ApusError) -> ClusterPKI.Issued {
        let certificate = "\(path)/\(name).pem"
        let key = "\(path)/\(name).key"
        if FileManager.default.fileExists(atPath: certificate), FileManager.default.fileExists(atPath: key) {
            return try ClusterPKI.read(certificate: certificate, key: key)
        }
        let issued = try make()
        try ClusterPKI.write(issued, certificate: certificate, key: key)
        if name != "ca" { try keepCopy(of: issued, name) }
        made += ["\(name).pem", "\(name).key"]
        return issued
    }
}
