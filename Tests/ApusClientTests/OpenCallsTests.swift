import ApusClient
import ApusContract
import ApusCore
import SwiftProtobuf
import Testing

@Suite("Calls in which a client has a part (CALL-13)")
struct OpenCallsTests {
    private func notice(_ id: String, _ stage: ClientCallStage) -> ClientCallNotice {
        .with { ($0.call, $0.stage) = (id, stage) }
    }

    @Test("A call that no node knows any more ends once, with −2532, for the caller and for the called client")
    func lost() {
        var calls = OpenCalls()
        calls.placed("a")
        calls.noticed(notice("b", .accepted))
        #expect(calls.calls.map(\.stage) == [.ring, .accepted])
        for (id, isOutgoing) in [("a", true), ("b", false)] {
            let end = calls.lost(id)
            #expect(end?.stage == .ended && end?.code == ErrorCode.mediaDisconnected.number)
            #expect(end?.call == id && end?.outgoing == isOutgoing)
            #expect(calls.lost(id) == nil)
        }
    }

    @Test(
        "A call that has ended, or that this client has ended, is not asked for",
        arguments: [ClientCallEvent.hungUp, .cancelled, .rejected, .busy, .failed])
    func ended(event: ClientCallEvent) {
        var calls = OpenCalls()
        calls.placed("a")
        calls.noticed(notice("b", .ring))
        calls.reported(.connected, of: "a")
        calls.reported(event, of: "a")
        calls.noticed(notice("b", .ended))
        #expect(calls.calls.isEmpty && calls.lost("a") == nil)
    }

    @Test("The newest calls are kept, up to a bound")
    func bound() {
        var calls = OpenCalls()
        for number in 0...OpenCalls.countMax { calls.placed("\(number)") }
        #expect(calls.calls.count == OpenCalls.countMax && calls.lost("0") == nil && calls.lost("1") != nil)
    }

    // MARK: - Questions

    private static let names = ["a", "b", "c"]
    private static let passing = ApusError(.noRoute)

    private func opened(_ names: [String] = Self.names) -> OpenCalls {
        var calls = OpenCalls()
        for name in names { calls.placed(name) }
        return calls
    }

    @Test("A question that fails for now is repeated for its call alone, after pauses of 1, 2, 4 and then 8 s")
    func pauses() {
        var calls = opened()
        let asked = calls.begin(at: 1).map(\.id)
        #expect(asked == Self.names)
        for pause in [1, 2, 4, 8, 8] {
            for name in Self.names {
                let step = calls.answered(name, at: 1, active: 1, Self.passing)
                #expect(step == .again(after: .seconds(pause), at: 1))
            }
            for name in Self.names {
                let call = calls.again(name, at: 1, active: 1)
                #expect(call?.id == name)
            }
        }
    }

    @Test("There is one question for a call at a time, if the subscription begins again, and in a pause")
    func oneQuestion() {
        var calls = opened()
        _ = calls.begin(at: 1)
        let whileSent = calls.begin(at: 1), early = calls.again("a", at: 1, active: 1)
        #expect(whileSent.isEmpty && early == nil)
        _ = calls.answered("a", at: 1, active: 1, Self.passing)
        let inPause = calls.begin(at: 1)
        #expect(inPause.isEmpty)
        // The cluster knows it, so the next subscription may ask again.
        let known = calls.answered("b", at: 1, active: 1, nil)
        #expect(known == .done)
        let next = calls.begin(at: 1)
        #expect(next.map(\.id) == ["b"])
    }

    @Test("A new connection asks at once, and the pause of the connection before it ends without a question")
    func newConnection() {
        var calls = opened(["a"])
        _ = calls.begin(at: 1)
        _ = calls.answered("a", at: 1, active: 1, Self.passing)
        let asked = calls.begin(at: 2), late = calls.again("a", at: 1, active: 2)
        #expect(asked.map(\.id) == ["a"] && late == nil)
        let step = calls.answered("a", at: 2, active: 2, Self.passing)
        #expect(step == .again(after: OpenCalls.pauseMin, at: 2))
        // Another connection is active, and its subscription has not begun.
        let unready = calls.again("a", at: 2, active: 3)
        let ready = calls.begin(at: 3)
        #expect(unready == nil && ready.map(\.id) == ["a"])
    }

    @Test("An answer of an earlier connection is not believed: the next connection then asks itself")
    func earlierAnswer() {
        for error in [nil, ApusError(.callUnknown), ApusError(.linkLost)] {
            var calls = opened(["a"])
            _ = calls.begin(at: 1)
            let asked = calls.begin(at: 2)
            #expect(asked.isEmpty)
            let step = calls.answered("a", at: 1, active: 2, error)
            #expect(step == .again(after: .zero, at: 2))
            let call = calls.again("a", at: 2, active: 2)
            #expect(call?.id == "a")
            let last = calls.answered("a", at: 2, active: 2, ApusError(.callUnknown))
            guard case .lost(let notice) = last else {
                Issue.record("\(last)")
                return
            }
            #expect(notice.call == "a" && notice.stage == .ended && calls.calls.isEmpty)
        }
    }

    @Test("A question ends with its connection, its call, and an error that lasts")
    func ends() {
        var calls = opened()
        _ = calls.begin(at: 1)
        let broken = calls.answered("a", at: 1, active: nil, ApusError(.linkLost))
        calls.ended("b")
        let ended = calls.answered("b", at: 1, active: 1, ApusError(.callUnknown))
        let refused = calls.answered("c", at: 1, active: 1, ApusError(.illegalRelation))
        #expect([broken, ended, refused] == [.done, .done, .done])
        let asked = calls.begin(at: 1).map(\.id)
        #expect(asked == ["a", "c"])
        _ = calls.answered("a", at: 1, active: 1, Self.passing)
        calls.ended("a")
        let call = calls.again("a", at: 1, active: 1)
        #expect(call == nil)
    }
}
