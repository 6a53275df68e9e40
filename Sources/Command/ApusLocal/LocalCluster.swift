package import ApusCore
package import ApusSessions
import Foundation

/// A local cluster, found by its state directory: its endpoints, its authority, and tokens for it.
/// `apus device --dir`, `apus watch --dir` and the cluster commands use it.
package struct LocalCluster: Sendable {
    /// The cluster's files.
    package let directory: StateDirectory
    /// The cluster's name and nodes.
    package let mark: StateDirectory.Mark

    /// The default account of a local cluster's tokens.
    package static let account = AccountID(unchecked: "local")

    /// Opens the cluster of a state directory.
    /// - Throws: 10020 if the directory holds no local cluster.
    package init(directory path: String) throws(ApusError) {
        directory = StateDirectory(path)
        mark = try directory.requireMark()
    }

    /// The cluster's name, which is part of every token and certificate.
    package var cluster: ClusterID { ClusterID(unchecked: mark.cluster) }
    /// The certificate of the cluster's authority, PEM.
    package var authorityFile: String { directory.pki.authority }
    /// The client endpoints, in the order of the nodes.
    package var endpoints: [HostPort] { mark.nodes.compactMap { HostPort($0.clients) } }

    /// The client endpoint of one node, by index from 1 or by name.
    /// - Throws: 21031 if there is no such node.
    package func endpoint(of node: String) throws(ApusError) -> HostPort {
        let found = try StateDirectory.node(node, in: mark)
        guard let endpoint = HostPort(found.clients) else {
            throw ApusError(.stateForeign, "\(directory.markFile) names no client endpoint of \(found.name)")
        }
        return endpoint
    }

    /// Issues a token for this cluster, by default for an hour.
    /// - Throws: as ``PKIDirectory/mint(_:)``.
    package func mint(
        role: Session.Role, access: AccessID, account: AccountID = account, device: DeviceID? = nil,
        devices: [DeviceID]? = nil, lifetime: Duration = .seconds(3600)
    ) async throws(ApusError) -> String {
        try await directory.pki.mint(
            TokenClaims(
                access: access, account: account, role: role, device: device, devices: devices,
                issuedAt: Int64(Date().timeIntervalSince1970), lifetime: lifetime, cluster: cluster,
                id: UUID().uuidString))
    }
}
