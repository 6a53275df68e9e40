import ApusCore
import ApusWire
import NIOCore
import Testing

@Suite("The handshake of a node link (D3)")
struct HandshakeStateMachineTests {
    private let a = NodeID(name: NodeName(unchecked: "a"), incarnation: 3)
    private let b = NodeID(name: NodeName(unchecked: "b"), incarnation: 5)

    private func dialer(
        cluster: String = "c", versions: ClosedRange<UInt32> = 1...2, lane: Lane = .control
    ) -> HandshakeStateMachine {
        HandshakeStateMachine(
            role: .dialer(expecting: b, lane: lane), cluster: ClusterID(unchecked: cluster), local: a,
            versions: versions)
    }

    private func acceptor(_ local: NodeID? = nil, versions: ClosedRange<UInt32> = 1...2) -> HandshakeStateMachine {
        HandshakeStateMachine(
            role: .acceptor(), cluster: ClusterID(unchecked: "c"), local: local ?? b, versions: versions)
    }

    private func frames(_ actions: [HandshakeStateMachine.Action]) -> [LinkFrame] {
        actions.compactMap { if case .send(let frame) = $0 { frame } else { nil } }
    }

    private func reason(_ actions: [HandshakeStateMachine.Action]) -> RejectReason? {
        for case .reject(let reason, _) in actions { return reason }
        return nil
    }

    /// Runs both sides against each other until neither says anything.
    private func run(
        _ dialer: inout HandshakeStateMachine, _ acceptor: inout HandshakeStateMachine, nameOfDialer: String = "a"
    ) -> (dialer: [HandshakeStateMachine.Action], acceptor: [HandshakeStateMachine.Action]) {
        var ofAcceptor = acceptor.secured(certificateName: NodeName(unchecked: nameOfDialer))
        var ofDialer = dialer.secured(certificateName: b.name)
        for hello in frames(ofDialer) { ofAcceptor += acceptor.received(hello) }
        for answer in frames(ofAcceptor) { ofDialer += dialer.received(answer) }
        return (ofDialer, ofAcceptor)
    }

    @Test("Two nodes of one cluster agree on their newest common version", arguments: Lane.allCases)
    func agreement(lane: Lane) {
        var dialer = dialer(versions: 1...2, lane: lane)
        var acceptor = acceptor(versions: 2...3)
        let actions = run(&dialer, &acceptor)
        #expect(actions.dialer.contains(.established(LinkPeer(id: b, lane: lane, version: 2))))
        #expect(actions.acceptor.contains(.established(LinkPeer(id: a, lane: lane, version: 2))))
    }

    @Test("Nodes without a common version part, and both know why")
    func versions() {
        var dialer = dialer(versions: 1...2)
        var acceptor = acceptor(versions: 3...4)
        let actions = run(&dialer, &acceptor)
        #expect(reason(actions.acceptor) == .version)
        #expect(reason(actions.dialer) == .refused)
        #expect(actions.dialer.contains(.reject(.refused, ApusError(.versionUnsupported))))
    }

    @Test("Another cluster is refused with 10011")
    func cluster() {
        var dialer = dialer(cluster: "other")
        var acceptor = acceptor()
        let actions = run(&dialer, &acceptor)
        #expect(actions.acceptor.contains(.reject(.cluster, ApusError(.wrongCluster))))
        #expect(actions.dialer.contains(.reject(.refused, ApusError(.wrongCluster))))
    }

    @Test("A name that is not the certificate's is refused")
    func name() {
        var dialer = dialer()
        var acceptor = acceptor()
        #expect(reason(run(&dialer, &acceptor, nameOfDialer: "x").acceptor) == .name)
    }

    @Test("Another life than the one that was dialled is not linked")
    func incarnation() {
        var dialer = dialer()
        var acceptor = acceptor(NodeID(name: b.name, incarnation: 6))
        #expect(reason(run(&dialer, &acceptor).dialer) == .incarnation)
    }

    @Test("A certificate of another node, or of none, ends the dial before a word is said")
    func certificate() {
        var other = dialer()
        #expect(other.secured(certificateName: a.name) == [.reject(.name, ApusError(.notAllowed))])
        var none = dialer()
        #expect(none.secured(certificateName: nil) == [.reject(.certificate, ApusError(.notAllowed))])
    }

    @Test("A revoked certificate is refused by both sides; the accepting one sends the reason after the hello")
    func revoked() {
        var dialing = dialer()
        #expect(
            dialing.secured(certificateName: b.name, isRevoked: true)
                == [.reject(.revoked, ApusError(.certificateRevoked))])
        var (dialer, acceptor) = (dialer(), acceptor())
        #expect(acceptor.secured(certificateName: a.name, isRevoked: true) == [])
        guard case .send(let hello)? = dialer.secured(certificateName: b.name).first else {
            Issue.record("no hello")
            return
        }
        let answer = acceptor.received(hello)
        #expect(reason(answer) == .revoked)
        guard case .send(let goodbye)? = answer.first else {
            Issue.record("no goodbye")
            return
        }
        #expect(dialer.received(goodbye) == [.reject(.refused, ApusError(.certificateRevoked))])
    }

    @Test(
        "A frame of another kind in the hello's place is refused",
        arguments: [FrameKind.welcome, .request, .media, .ping, .goodbye])
    func wrongKind(kind: FrameKind) {
        var acceptor = acceptor()
        _ = acceptor.secured(certificateName: a.name)
        #expect(reason(acceptor.received(LinkFrame(kind: kind))) == .malformed)
    }

    @Test("A frame before TLS finished is refused; the end or the time's end within the handshake is told once")
    func early() {
        var early = acceptor()
        #expect(reason(early.received(LinkFrame(kind: .hello))) == .malformed)
        var slow = acceptor()
        #expect(reason(slow.timedOut()) == .timeout)
        #expect(slow.closed() == [])
        var broken = dialer()
        #expect(reason(broken.closed()) == .truncated)
        #expect(broken.timedOut() == [])
    }
}
