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
}
