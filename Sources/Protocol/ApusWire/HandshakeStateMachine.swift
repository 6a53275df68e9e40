public import ApusCore
import NIOCore
import SwiftProtobuf

/// The wire versions that this release speaks: N and N−1, so that a cluster can be upgraded one
/// node after the other (D3).
public enum WireVersion {
    public static let current: UInt32 = 1
    public static let oldest: UInt32 = 1
}

/// What a connection between two nodes is for; video never delays control (D3).
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

/// The other end of a link, after the handshake proved it.
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

/// Why a link was refused or closed by this side. The raw value is the metric's label.
public enum RejectReason: String, Sendable, Hashable, CaseIterable {
    /// TLS could not be spoken: garbage, a wrong version, an alert from the other side.
    case tls
    /// A certificate of another authority, an expired one, or none.
    case certificate
    /// The name in the hello is not the certificate's.
    case name
    /// Another cluster's identity (10011).
    case cluster
    /// No wire version in common (10003).
    case version
    /// A life of the node that ended, or not the one that was dialled (10025).
    case incarnation
    /// A frame that cannot be read or does not belong there (10001).
    case malformed
    /// A frame over the limit (10002).
    case oversized
    /// The connection ended within a frame or within the handshake.
    case truncated
    /// The handshake did not finish in time (10014).
    case timeout
    /// More connections than are let through the handshake at one time (10007).
    case crowded
    /// Nothing was heard for too long (10015).
    case silent
    /// The other side refused; its number is in the log line.
    case refused
}

/// The first two frames of a node link: HELLO from the side that connected, WELCOME in return (D3).
///
/// Nothing from the other side is trusted before the machine says ``Action/established(_:)``: the
/// name that it claims must be the name in its certificate, the cluster must be the same, and a
/// wire version must be common. Under TLS 1.3 the side that connected sees TLS finish before its own
/// certificate was judged, so only the WELCOME tells it that it was let in.
///
/// States: `securing` (TLS runs) → `greeting` (our HELLO went out) or `listening` (theirs is
/// awaited) → `finished`. Every input in a wrong state ends the link, and only the link.
public struct HandshakeStateMachine: Sendable {
    /// Who speaks first.
    public enum Role: Sendable, Hashable {
        /// This side connected, to this node, and speaks first.
        case dialer(expecting: NodeID, lane: Lane)
        /// This side was connected to.
        case acceptor
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
        case listening(certificateName: NodeName)
        case finished
    }

    private let cluster: ClusterID
    private let local: NodeID
    private let role: Role
    private let versions: ClosedRange<UInt32>
    private var state = State.securing

    /// - Parameter versions: the wire versions that this side speaks.
    public init(
        role: Role, cluster: ClusterID, local: NodeID,
        versions: ClosedRange<UInt32> = WireVersion.oldest...WireVersion.current
    ) {
        self.role = role
        self.cluster = cluster
        self.local = local
        self.versions = versions
    }

    /// TLS finished; the certificate belongs to the node of this name, or to no node.
    public mutating func secured(certificateName: NodeName?) -> [Action] {
        guard case .securing = state else { return fail(.malformed, ApusError(.malformed)) }
        guard let certificateName else {
            return fail(.certificate, ApusError(.notAllowed, "the certificate is not a node's"))
        }
        switch role {
        case .acceptor:
            state = .listening(certificateName: certificateName)
            return []
        case .dialer(let peer, let lane):
            guard certificateName == peer.name else {
                return fail(.name, ApusError(.notAllowed, "the certificate belongs to another node"))
            }
            state = .greeting(certificateName: certificateName)
            return [.send(greeting(.hello, lane: lane))]
        }
    }

    /// A frame came.
    public mutating func received(_ frame: LinkFrame) -> [Action] {
        switch state {
        case .securing, .finished:
            return fail(.malformed, ApusError(.malformed, "a frame came where none belongs"))
        case .listening(let name):
            guard frame.kind == .hello else {
                return fail(.malformed, ApusError(.malformed, "the first frame is not a hello"))
            }
            return judge(frame, certificateName: name)
        case .greeting(let name):
            if frame.kind == .goodbye { return fail(.refused, Self.error(of: frame)) }
            guard frame.kind == .welcome else {
                return fail(.malformed, ApusError(.malformed, "the answer is not a welcome"))
            }
            return judge(frame, certificateName: name)
        }
    }

    /// The time for the handshake is over; no effect after its end.
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
        case .acceptor:
            state = .finished
            return [
                .send(greeting(.welcome, lane: lane)),
                .established(LinkPeer(id: id, lane: lane, version: version)),
            ]
        case .dialer(let peer, let dialled):
            guard lane == dialled else { return fail(.malformed, ApusError(.malformed, "another lane answered")) }
            guard id == peer else {
                return fail(.incarnation, ApusError(.fenced, "another life of the node answered"))
            }
            state = .finished
            return [.established(LinkPeer(id: id, lane: lane, version: version))]
        }
    }

    private mutating func fail(_ reason: RejectReason, _ error: ApusError) -> [Action] {
        let wasListening: Bool
        if case .listening = state { wasListening = true } else { wasListening = false }
        state = .finished
        // Only a side that was spoken to explains itself; the other just leaves.
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
