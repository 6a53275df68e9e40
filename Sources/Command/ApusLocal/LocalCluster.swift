package import ApusCore
package import ApusSessions
import Foundation

/// A local cluster found by its state directory: its doors, its authority, and tokens for it.
///
/// What `apus device --dir`, `apus watch --dir` and the cluster verbs start from.
package struct LocalCluster: Sendable {
    /// Where its files are.
    package let directory: StateDirectory
    /// Its name and its nodes.
    package let mark: StateDirectory.Mark

    /// The account that tokens of a local cluster belong to, where none is named.
    package static let account = AccountID(unchecked: "local")

    /// Opens the cluster of a state directory.
    ///
    /// - Throws: 10020 where the directory holds no local cluster.
    package init(directory path: String) throws(ApusError) {
        directory = StateDirectory(path)
        mark = try directory.requireMark()
    }

    /// Its name, which every token and certificate carries.
    package var cluster: ClusterID { ClusterID(unchecked: mark.cluster) }
    /// The cluster's authority, PEM.
    package var authorityFile: String { directory.pki.authority }
    /// Where devices and apps connect, in the order of the nodes.
    package var doors: [HostPort] { mark.nodes.compactMap { HostPort($0.clients) } }

    /// The door of one node, by index from 1 or by name.
    ///
    /// - Throws: 21031 where there is no such node.
    package func door(of node: String) throws(ApusError) -> HostPort {
        let found = try StateDirectory.node(node, in: mark)
        guard let door = HostPort(found.clients) else {
            throw ApusError(.stateForeign, "\(directory.markFile) names no door for \(found.name)")
        }
        return door
    }

    /// A token for this cluster, good for an hour unless said otherwise.
    ///
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
