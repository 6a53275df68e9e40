package import ApusCore
import ApusCrypto
import ApusTransport
package import Foundation

/// A certificate of the directory, for people.
package struct PKIEntry: Sendable, Encodable {
    /// The file's name without `.pem`.
    package var name: String
    /// The node that the certificate names.
    package var node: String?
    package var serial: String
    package var expires: Date
    package var days_left: Int
    package var revoked: Bool
}

/// A shared secret that is changed in steps, with two of them accepted in between.
package enum PKISecret: String, Sendable, CaseIterable {
    /// The cluster's authority: `ca.pem` and `ca.key`.
    case authority
    /// The key of tokens: `token.pub` and `token.key`.
    case tokens
    /// The cluster's key: `cluster.key`.
    case cluster
}

/// The steps of a change, in their order. Each one must be at every node before the next.
package enum PKIStep: String, Sendable, CaseIterable {
    /// The new one is accepted beside the old one, which is still used.
    case add
    /// The new one is used, and the old one is still accepted.
    case use
    /// The old one is not accepted any more.
    case remove
}

/// Certificates that are renewed or revoked, and secrets that are changed.
extension PKIDirectory {
    private var issuedFolder: String { "\(path)/issued" }
    /// The serial numbers of revoked certificates, for `tls.revoked`.
    package var revokedList: String { "\(path)/revoked.txt" }

    /// Issues new certificates, with new keys, for the names and addresses of the present ones.
    ///
    /// - Parameters:
    ///   - names: names of files without `.pem`; empty for all certificates except the authority's.
    ///   - hosts: further names and addresses.
    /// - Returns: the files.
    /// - Throws: 10021 if a file cannot be read or written, 10022 if the authority or a certificate cannot be read.
    package func renew(_ names: [String], hosts: [String]) throws(ApusError) -> [String] {
        let authority = try ClusterPKI.read(certificate: authority, key: "\(path)/ca.key")
        let all = try certificateNames()
        for name in names where !all.contains(name) {
            throw ApusError(.storageFailed, "there is no certificate \(path)/\(name).pem to renew")
        }
        var made: [String] = []
        for name in names.isEmpty ? all : names {
            let (certificate, key) = ("\(path)/\(name).pem", "\(path)/\(name).key")
            let old = try ClusterPKI.read(certificate: certificate, key: key)
            let known = try ClusterPKI.hosts(ofPEM: old.certificatePEM)
            let wanted = known + hosts.filter { !known.contains($0) }
            let node = try CertificateFacts.all(file: certificate)[0].node
            let new =
                if let node {
                    try ClusterPKI.issueNode(node, hosts: wanted, authority: authority)
                } else {
                    try ClusterPKI.issueClientEndpoint(hosts: wanted, authority: authority)
                }
            try keepCopy(of: old, name)
            try keepCopy(of: new, name)
            try ClusterPKI.write(new, certificate: certificate, key: key)
            made += ["\(name).pem", "\(name).key"]
        }
        return made
    }

    /// Adds every certificate that was issued to these nodes to the list of revoked ones, and removes the present files
    /// of the nodes, so that new certificates can be issued.
    ///
    /// - Returns: the serial numbers that were added.
    /// - Throws: 10021 if the directory cannot be read or written, or has no certificate of a node.
    package func revoke(nodes: [NodeName], serials: [String], at now: Date = Date()) throws(ApusError) -> [String] {
        var lines: [(serial: String, comment: String)] = serials.map { ($0.lowercased(), "") }
        for node in nodes {
            let issued = try entries(in: issuedFolder) + entries(in: path)
            let mine = issued.filter { $0.node == node.rawValue }
            guard !mine.isEmpty else {
                throw ApusError(.storageFailed, "\(path) has no certificate of node \(node)")
            }
            for entry in mine where !lines.contains(where: { $0.serial == entry.serial }) {
                lines.append((entry.serial, node.rawValue))
            }
        }
        let old = FileManager.default.fileExists(atPath: revokedList) ? try text(of: revokedList) : ""
        let known = try RevokedCertificates(text: old, source: revokedList)
        let date = ISO8601DateFormatter().string(from: now)
        let new = lines.filter { !known.contains(serial: $0.serial) }
        let added = new.map { "\($0.serial)  # \($0.comment) \(date)\n" }.joined()
        _ = try RevokedCertificates(text: old + added, source: revokedList)
        try ClusterPKI.writeFile(Array((old + added).utf8), to: revokedList, mode: 0o644)
        for node in nodes {
            for suffix in ["pem", "key"] {
                try? FileManager.default.removeItem(atPath: "\(path)/\(node).\(suffix)")
            }
        }
        return new.map(\.serial)
    }

    /// The present certificates.
    ///
    /// - Throws: 10021 if the directory cannot be read, 10022 if a certificate cannot.
    package func entries() throws(ApusError) -> [PKIEntry] { try entries(in: path) }

    /// Carries out a step of a change.
    ///
    /// - Returns: the files that changed.
    /// - Throws: 10022 if the step does not follow from the present state, 10021 if a file cannot be read or written.
    package func change(
        _ secret: PKISecret, _ step: PKIStep, cluster: ClusterID
    ) throws(ApusError) -> [String] {
        switch secret {
        case .authority:
            return try changePair(step, public: "ca.pem", private: "ca.key") { () throws(ApusError) in
                try ClusterPKI.makeAuthority(cluster: cluster)
            }
        case .tokens:
            return try changePair(step, public: "token.pub", private: "token.key") { () throws(ApusError) in
                let key = P256.Signing.PrivateKey()
                return ClusterPKI.Issued(
                    certificatePEM: key.publicKey.pemRepresentation, privateKeyPEM: key.pemRepresentation)
            }
        case .cluster: return try changeClusterKey(step)
        }
    }

    /// A pair of files: the first block of the public one belongs to the private one.
    private func changePair(
        _ step: PKIStep, public publicName: String, private privateName: String,
        _ make: () throws(ApusError) -> ClusterPKI.Issued
    ) throws(ApusError) -> [String] {
        let (publicFile, privateFile) = ("\(path)/\(publicName)", "\(path)/\(privateName)")
        let next = privateFile + ".next"
        let blocks = ClusterPKI.pemBlocks(try text(of: publicFile))
        try check(step, count: blocks.count, next: next)
        let block: [String]
        switch step {
        case .add:
            let new = try make()
            try ClusterPKI.writeFile(Array(new.privateKeyPEM.utf8), to: next, mode: 0o600)
            block = blocks + ClusterPKI.pemBlocks(new.certificatePEM)
        case .use:
            try ClusterPKI.writeFile(Array(try text(of: next).utf8), to: privateFile, mode: 0o600)
            block = blocks.reversed()
        case .remove: block = [blocks[0]]
        }
        try ClusterPKI.writeFile(Array(block.joined().utf8), to: publicFile, mode: 0o644)
        if step == .use { try? FileManager.default.removeItem(atPath: next) }
        return step == .use ? [publicName, privateName] : [publicName]
    }

    private func changeClusterKey(_ step: PKIStep) throws(ApusError) -> [String] {
        let count = ClusterKeys.keyByteCount
        let bytes = [UInt8](FileManager.default.contents(atPath: clusterKey) ?? Data())
        let next = clusterKey + ".next"
        try check(step, count: bytes.count / count, next: next)
        let new: [UInt8]
        switch step {
        case .add:
            // SAFETY: copied in the closure.
            let key = SymmetricKey.random().withUnsafeBytes { Array($0) }
            try ClusterPKI.writeFile(key, to: next, mode: 0o600)
            new = bytes + key
        case .use: new = Array(bytes.dropFirst(count) + bytes.prefix(count))
        case .remove: new = Array(bytes.prefix(count))
        }
        try ClusterPKI.writeFile(new, to: clusterKey, mode: 0o600)
        if step == .use { try? FileManager.default.removeItem(atPath: next) }
        return ["cluster.key"]
    }

    /// The file `next` exists from `add` to `use`. The other file has two secrets from `add` to `remove`.
    private func check(_ step: PKIStep, count: Int, next: String) throws(ApusError) {
        let hasNext = FileManager.default.fileExists(atPath: next)
        let expected: PKIStep? =
            switch (count, hasNext) {
            case (1, _): .add
            case (2, true): .use
            case (2, false): .remove
            default: nil
            }
        guard step == expected else {
            let place = expected.map { "the next step is '\($0.rawValue)'" } ?? "its files are damaged"
            throw ApusError(.configurationInvalid, "'\(step.rawValue)' is not possible now: \(place)")
        }
    }

    func keepCopy(of issued: ClusterPKI.Issued, _ name: String) throws(ApusError) {
        let facts = try CertificateFacts.all(pem: Array(issued.certificatePEM.utf8), source: name)[0]
        do {
            try FileManager.default.createDirectory(
                atPath: issuedFolder, withIntermediateDirectories: true, attributes: [.posixPermissions: 0o700])
        } catch {
            throw ApusError(.storageFailed, "\(issuedFolder) cannot be created: \(error.localizedDescription)")
        }
        try ClusterPKI.writeFile(
            Array(issued.certificatePEM.utf8), to: "\(issuedFolder)/\(name)-\(facts.serial).pem", mode: 0o644)
    }

    /// The names of certificates that have a key here, except the authority's.
    private func certificateNames() throws(ApusError) -> [String] {
        try pemNames(in: path).filter { $0 != "ca" && FileManager.default.fileExists(atPath: "\(path)/\($0).key") }
    }

    private func pemNames(in folder: String) throws(ApusError) -> [String] {
        guard FileManager.default.fileExists(atPath: folder) else { return [] }
        do {
            return try FileManager.default.contentsOfDirectory(atPath: folder).filter { $0.hasSuffix(".pem") }
                .map { String($0.dropLast(4)) }.sorted()
        } catch {
            throw ApusError(.storageFailed, "\(folder) cannot be read: \(error.localizedDescription)")
        }
    }

    private func entries(in folder: String, at now: Date = Date()) throws(ApusError) -> [PKIEntry] {
        let revoked = try RevokedCertificates(
            file: FileManager.default.fileExists(atPath: revokedList) ? revokedList : "")
        var entries: [PKIEntry] = []
        for name in try pemNames(in: folder) {
            for facts in try CertificateFacts.all(file: "\(folder)/\(name).pem") {
                entries.append(
                    PKIEntry(
                        name: name, node: facts.node?.rawValue, serial: facts.serial, expires: facts.notAfter,
                        days_left: Int(facts.notAfter.timeIntervalSince(now) / 86_400),
                        revoked: revoked.contains(facts)))
            }
        }
        return entries
    }

    private func text(of file: String) throws(ApusError) -> String {
        do {
            return try String(contentsOfFile: file, encoding: .utf8)
        } catch {
            throw ApusError(.storageFailed, "\(file) cannot be read: \(error.localizedDescription)")
        }
    }
}
