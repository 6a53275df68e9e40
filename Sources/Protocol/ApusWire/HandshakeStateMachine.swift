public import ApusCore
import NIOCore
import SwiftProtobuf

/// The wire versions of this release: N and N−1, so that a cluster can be upgraded node by node (D3).
///
/// | version | since then |
/// |---|---|
/// | 1 | the first |
/// | 2 | heartbeats with promises; the cluster map has a history and cordoned nodes |
///
/// A feature that nodes of the previous version would lose or not understand is used only when all members speak the
/// version that has it. Tests/ApusWireTests/Version1 holds bytes of version 1 that are frozen.
public enum WireVersion {
    public static let current: UInt32 = 2
    /// The version since which members can be cordoned.
    public static let cordon: UInt32 = 2
    public static let oldest: UInt32 = 1
}

/// The purpose of a connection between two nodes. Separate lanes keep video from delaying control (D3).
public enum Lane: UInt8, Sendable, Hashable, CaseIterable, CustomStringConvertible {
    case control = 1
    case media = 2

    public var description: String {
        switch self {
        case .control: "control"
        case .media: "media"
        }
    }
}

/// The other end of a link, authenticated by the handshake.
public struct LinkPeer: Sendable, Hashable {
    public var id: NodeID
    public var lane: Lane
    /// The newest wire version that both sides speak.
    public var version: UInt32

    public init(id: NodeID, lane: Lane, version: UInt32) {
        self.id = id
        self.lane = lane
        self.version = version
    }
}

/// The reason for which this side refused or closed a link. The raw value is the metric's label.
public enum RejectReason: String, Sendable, Hashable, CaseIterable {
    /// TLS failed: garbage, a wrong version, or an alert from the peer.
    case tls
    /// A certificate of another authority, an expired one, or none.
    case certificate
    /// The certificate is in this node's list of revoked certificates (10032).
    case revoked
    /// The name in the hello is not the certificate's.
    case name
    /// Another cluster's identity (10011).
    case cluster
    /// No wire version in common (10003).
    case version
    /// An incarnation of the node that has ended, or not the one that was dialled (10025).
    case incarnation
    /// A frame that cannot be decoded, or is not allowed there (10001).
    case malformed
    /// A frame over the limit (10002).
    case oversized
    /// The connection ended within a frame or within the handshake.
    case truncated
    /// The handshake did not finish in time (10014).
    case timeout
    /// Too many connections are in the handshake (10007).
    case crowded
    /// Nothing was received for too long (10015).
    case silent
    /// The peer refused. The log line has its number.
    case refused
}

/// The first two frames of a node link: HELLO from the side that connected, WELCOME in return (D3).
///
/// Nothing from the peer is trusted before the machine emits ``Action/established(_:)``: the claimed name must be the
/// name in its certificate, the cluster must be the same, and a wire version must be common. Under TLS 1.3 the side
/// that connected completes TLS before its own certificate was checked, so only the WELCOME shows that it was accepted.
///
/// States: `securing` (TLS runs) → `greeting` (our HELLO was sent) or `listening` (the peer's is awaited) → `finished`.
/// Every input in a wrong state ends this link, and no other.
public struct HandshakeStateMachine: Sendable {
    /// The side that speaks first.
    public enum Role: Sendable {
        /// This side connected to that node, and speaks first.
        case dialer(expecting: NodeID, lane: Lane)
        /// The peer connected to this side. The closure returns true for an incarnation that has ended. It is refused
        /// with 10025.
        case acceptor(hasEnded: @Sendable (NodeID) -> Bool = { _ in false })
    }

    public enum Action: Sendable, Equatable {
        case send(LinkFrame)
        case established(LinkPeer)
        /// Close the link after the frames before this one were sent.
        case reject(RejectReason, ApusError)
    }

    private enum State {
        case securing
        case greeting(certificateName: NodeName)
        case listening(certificateName: NodeName, isRevoked: Bool)
        case finished
    }

    private let cluster: ClusterID
    private let local: NodeID
    private let role: Role
    private let versions: ClosedRange<UInt32>
    private var state = State.securing

    /// - Parameter versions: the wire versions of this side.
    public init(
        role: Role, cluster: ClusterID, local: NodeID,
        versions: ClosedRange<UInt32> = WireVersion.oldest...WireVersion.current
    ) {
        self.role = role
        self.cluster = cluster
        self.local = local
        self.versions = versions
    }

    /// TLS is complete. The certificate belongs to the node of this name, or to no node.
    ///
    /// - Parameter isRevoked: the certificate must not be accepted any more. The accepting side still reads the hello,
    ///   so that its answer with the reason is not lost with the connection.
    public mutating func secured(certificateName: NodeName?, isRevoked: Bool = false) -> [Action] {
        guard case .securing = state else { return fail(.malformed, ApusError(.malformed)) }
        guard let certificateName else {
            return fail(.certificate, ApusError(.notAllowed, "the certificate is not a node's"))
        }
        switch role {
        case .acceptor:
            state = .listening(certificateName: certificateName, isRevoked: isRevoked)
            return []
        case .dialer(let peer, let lane):
            guard certificateName == peer.name else {
                return fail(.name, ApusError(.notAllowed, "the certificate belongs to another node"))
            }
            guard !isRevoked else { return fail(.revoked, ApusError(.certificateRevoked)) }
            state = .greeting(certificateName: certificateName)
            return [.send(greeting(.hello, lane: lane))]
        }
    }

    /// A frame arrived.
    public mutating func received(_ frame: LinkFrame) -> [Action] {
        switch state {
        case .securing, .finished:
            return fail(.malformed, ApusError(.malformed, "an unexpected frame arrived"))
        case .listening(let name, let isRevoked):
            guard frame.kind == .hello else {
                return fail(.malformed, ApusError(.malformed, "the first frame is not a hello"))
            }
            guard !isRevoked else { return fail(.revoked, ApusError(.certificateRevoked)) }
            return judge(frame, certificateName: name)
        case .greeting(let name):
            if frame.kind == .goodbye { return fail(.refused, Self.error(of: frame)) }
            guard frame.kind == .welcome else {
                return fail(.malformed, ApusError(.malformed, "the answer is not a welcome"))
            }
            return judge(frame, certificateName: name)
        }
    }

    /// The handshake timed out. No effect after its end.
    public mutating func timedOut() -> [Action] {
        if case .finished = state { return [] }
        return fail(.timeout, ApusError(.handshakeTimeout))
    }

    /// The connection ended; no effect after the handshake's end.
    public mutating func closed() -> [Action] {
        if case .finished = state { return [] }
        return fail(.truncated, ApusError(.linkLost, "the connection ended within the handshake"))
    }

    private mutating func judge(_ frame: LinkFrame, certificateName: NodeName) -> [Action] {
        guard let hello = try? ClusterNodeHello(bounded: frame.payload),
            let lane = hello.lane.lane, let name = NodeName(rawValue: hello.node)
        else { return fail(.malformed, ApusError(.malformed, "the hello cannot be read")) }
        guard hello.cluster == cluster.rawValue else {
            return fail(.cluster, ApusError(.wrongCluster))
        }
        guard name == certificateName else {
            return fail(.name, ApusError(.notAllowed, "the node's name is not its certificate's"))
        }
        let version = min(hello.version, versions.upperBound)
        guard version >= hello.versionMin, version >= versions.lowerBound else {
            return fail(.version, ApusError(.versionUnsupported))
        }
        let id = NodeID(name: name, incarnation: hello.incarnation)
        switch role {
        case .acceptor(let hasEnded):
            guard !hasEnded(id) else { return fail(.incarnation, ApusError(.fenced)) }
            state = .finished
            return [
                .send(greeting(.welcome, lane: lane)),
                .established(LinkPeer(id: id, lane: lane, version: version)),
            ]
        case .dialer(let peer, let dialled):
            guard lane == dialled else { return fail(.malformed, ApusError(.malformed, "another lane answered")) }
            guard id == peer else {
                return fail(.incarnation, ApusError(.fenced, "another incarnation of the node answered"))
            }
            state = .finished
            return [.established(LinkPeer(id: id, lane: lane, version: version))]
        }
    }

    private mutating func fail(_ reason: RejectReason, _ error: ApusError) -> [Action] {
        let wasListening: Bool
        if case .listening = state { wasListening = true } else { wasListening = false }
        state = .finished
        // Only the accepting side sends a reason. The other one closes the link.
        guard wasListening, reason != .truncated else { return [.reject(reason, error)] }
        return [.send(LinkFrame(kind: .goodbye, payload: ClusterFailure.payload(of: error))), .reject(reason, error)]
    }

    private func greeting(_ kind: FrameKind, lane: Lane) -> LinkFrame {
        var hello = ClusterNodeHello()
        hello.cluster = cluster.rawValue
        hello.node = local.name.rawValue
        hello.incarnation = local.incarnation
        hello.version = versions.upperBound
        hello.versionMin = versions.lowerBound
        hello.lane = lane == .control ? .control : .media
        // Serializing proto3 without required fields cannot fail; an empty hello would be refused.
        let bytes: [UInt8] = (try? hello.serializedBytes()) ?? []
        return LinkFrame(kind: kind, payload: ByteBuffer(bytes: bytes))
    }

    private static func error(of frame: LinkFrame) -> ApusError {
        ClusterFailure.read(frame.payload).error
    }
}

extension ClusterNodeHello.Lane {
    fileprivate var lane: Lane? {
        switch self {
        case .control: .control
        case .media: .media
        case .unspecified, .UNRECOGNIZED: nil
        }
    }
}
