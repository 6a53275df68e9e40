package import ApusCore
import ApusTransport
import ApusWire
import NIOCore

/// What operators decide about nodes. Any member makes these decisions, also about others and about nodes that are
/// down.
extension ClusterService {
    /// Cordons a node, or ends that. A cordoned node keeps the shards that it owns or stands by for, and gets no others
    /// as long as another node can take them. It lasts until it is ended, whoever restarts.
    ///
    /// - Throws: 8002 if there is no such node, 10003 if a member does not speak wire version 2, or is not reached yet:
    ///   a node of version 1 would end it with its next map. And the errors of ``propose(_:)``.
    package func cordon(_ node: NodeName, _ isCordoned: Bool) async throws(ApusError) {
        if isCordoned { try await requireVersion(WireVersion.cordon, for: "cordon") }
        try await propose(.cordon(node, isCordoned))
    }

    /// Changes a node's weight until its next start, which uses its configuration's again.
    ///
    /// - Throws: 8002 if there is no such node, and the errors of ``propose(_:)``.
    package func weigh(_ node: NodeName, _ weight: UInt32) async throws(ApusError) {
        try await propose(.weigh(node, weight))
    }

    /// The wire version between this node and a member; nil if no link to it was up yet.
    package func wireVersion(of member: NodeID) async -> UInt32? {
        guard member != identity else { return WireVersion.current }
        let links = try? await thread.loop.submit { self.state.value.links }.get()
        return links?.wireVersion(of: member)
    }

    private func requireVersion(_ version: UInt32, for feature: String) async throws(ApusError) {
        for member in view.map.members where member.state.isAlive {
            guard let found = await wireVersion(of: member.id) else {
                throw ApusError(
                    .versionUnsupported,
                    "\(member.id.name) is not reached yet, so its version is unknown; \(feature) needs all nodes")
            }
            guard found >= version else {
                throw ApusError(
                    .versionUnsupported,
                    "\(member.id.name) speaks wire version \(found), and \(feature) needs \(version); upgrade it first")
            }
        }
    }
}
