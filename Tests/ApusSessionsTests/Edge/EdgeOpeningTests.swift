import ApusCore
import ApusSessions
import Testing

@Suite("A session is opened at its edge (D6, IV-A5)")
struct EdgeOpeningTests {
    private typealias Bench = EdgeBench

    /// A session that is being opened over link 1.
    private func opening() -> Bench {
        var bench = Bench()
        let refusal = bench.machine.opening(Bench.session("s"), 1)
        #expect(refusal == nil)
        return bench
    }

    private func opened(
        _ bench: inout Bench, _ answer: Result<SessionOrder, ApusError>
    ) -> (order: SessionOrder?, code: ErrorCode?, said: [Said]) {
        let (session, actions) = bench.machine.opened("s", answer)
        let said = bench.said(actions)
        switch session {
        case .success(let session): return (session.order, nil, said)
        case .failure(let error): return (nil, error.code, said)
        }
    }

    @Test("It has the order that its owner gave it, is confirmed, and nothing more is told")
    func opens() {
        var bench = opening()
        #expect(bench.machine.held("s")?.isReported == false)
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.order == Bench.order(5) && result.said.isEmpty)
        let held = bench.machine.held("s")
        #expect(held?.links == [1] && held?.isConfirmed == true && held?.isReported == true)
        #expect(held?.order == Bench.order(5))
    }

    @Test(
        "A kick that overtakes the owner's answer counts where its client is the later one", arguments: [UInt64(4), 6])
    func kickBeforeAnswer(sequence: UInt64) {
        var bench = opening()
        let kick = bench.machine.kicked("s", .kicked, by: Bench.order(sequence), epoch: 0)
        #expect(kick.isEmpty, "its order is not known yet")
        let result = opened(&bench, .success(Bench.order(5)))
        if sequence == 4 {
            #expect(result.order == Bench.order(5) && result.said.isEmpty)
            #expect(bench.machine.held("s")?.links == [1])
        } else {
            #expect(result.code == .kicked && result.said == [.ask(.unregister, "s")])
            #expect(bench.machine.held("s")?.links == [])
        }
    }

    @Test("Of several kicks that overtake the answer the one by the latest client counts")
    func kicksBeforeAnswer() {
        var bench = opening()
        for sequence in [UInt64(3), 8, 4] {
            _ = bench.machine.kicked("s", .kicked, by: Bench.order(sequence), epoch: 0)
        }
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.code == .kicked)
    }

    @Test("A release that overtakes the owner's answer ends the session: the owner does not have its place any more")
    func releaseBeforeAnswer() {
        var bench = opening()
        #expect(bench.machine.kicked("s", .linkLost, by: nil, epoch: 0).isEmpty)
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.code == .linkLost && result.said == [.ask(.unregister, "s")])
    }

    @Test("What a former owner says meanwhile does not count")
    func formerOwner() {
        var bench = opening()
        _ = bench.map([Bench.shard: 3])
        _ = bench.machine.kicked("s", .kicked, by: Bench.order(9, epoch: 9), epoch: 2)
        _ = bench.machine.kicked("s", .linkLost, by: nil, epoch: 2)
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.order == Bench.order(5))
    }

    @Test(
        "An opening that is refused is told to the owner once, whether it hears of it or not", arguments: [true, false])
    func refused(isHeard: Bool) {
        var bench = opening()
        let result = opened(&bench, .failure(ApusError(.deadlineExceeded)))
        #expect(result.code == .deadlineExceeded && result.said == [.ask(.unregister, "s")])
        #expect((isHeard ? bench.answer(.done) : bench.fail()).isEmpty)
        #expect(bench.machine.sessionCount == 0 && bench.machine.held("s") == nil)
    }

    @Test("A map that comes while the owner is asked: the next owner is told once the session is open")
    func mapMeanwhile() {
        var bench = opening()
        #expect(bench.map([Bench.shard: 2]).isEmpty)
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.order == Bench.order(5) && result.said == [.ask(.register(isAsleep: false), "s")])
        #expect(bench.asks.first?.session.order == Bench.order(5), "it shows the order that it was given")
        #expect(bench.answer(.registered(Bench.order(5))).isEmpty)
        #expect(bench.machine.held("s")?.isReported == true)
    }

    @Test("A session that is revoked while it is opened ends at once, and is not opened")
    func revokedMeanwhile() {
        var bench = opening()
        let list = RevocationList([RevocationRecord(.token(TokenMark.tag(of: "s")), expires: .max)])
        let (sessions, actions) = bench.machine.revoked(by: list)
        #expect(sessions.map(\.id) == ["s"] && bench.said(actions) == [.end([1], .tokenInvalid)])
        let again = bench.machine.revoked(by: list)
        #expect(again.sessions.isEmpty && again.actions.isEmpty, "it is ended once")
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.code == .tokenInvalid && result.said == [.ask(.unregister, "s")])
        // Its owner has it, and is told until it knows.
        #expect(bench.fail() == [.wait(.milliseconds(50))])
        #expect(bench.pauseEnds() == [.ask(.unregister, "s")])
        #expect(bench.answer(.done).isEmpty)
        #expect(bench.machine.sessionCount == 0)
    }

    @Test("A client that leaves while the owner is asked is unregistered once it is open")
    func leavesMeanwhile() {
        var bench = opening()
        #expect(bench.said(bench.machine.closed("s", 1)).isEmpty)
        let result = opened(&bench, .success(Bench.order(5)))
        #expect(result.said == [.ask(.unregister, "s")])
    }

    @Test("Sessions are bounded: one more is refused with 10007, whichever way it comes (D13)")
    func bound() {
        var bench = Bench { $0.sessionsMax = 1 }
        bench.open("a", 1)
        #expect(bench.machine.opening(Bench.session("b"), 2)?.code == .overloaded)
        #expect(bench.resume(Bench.session("c"), 3).isConfirmed == nil)
        #expect(bench.resume(Bench.session("a"), 4).isConfirmed == true)
        #expect(bench.machine.sessionCount == 1)
    }
}
