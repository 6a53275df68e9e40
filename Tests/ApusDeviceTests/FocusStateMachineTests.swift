import ApusContract
import ApusCore
import ApusDevice
import ApusTestKit
import Synchronization
import Testing

@Suite("Which sounds of a device are in the foreground: a dialog over an alert over content")
struct FocusStateMachineTests {
    private typealias Machine = FocusStateMachine
    private typealias Change = FocusStateMachine.Change

    private static func at(_ seconds: Int) -> MonotonicTime { .zero + .seconds(seconds) }

    @Test("Content ducks under an alert and a dialog, and goes on after them")
    func priorities() {
        var machine = Machine()
        #expect(machine.acquire(.content, by: "music") == [Change(.content, .foreground)])
        #expect(
            machine.acquire(.alert, by: "timer-1") == [Change(.content, .background), Change(.alert, .foreground)])
        #expect(machine.acquire(.alert, by: "timer-2").isEmpty)
        #expect(
            machine.acquire(.dialog, by: "dialog") == [Change(.alert, .background), Change(.dialog, .foreground)])
        #expect(machine.release(.alert, by: "timer-1").isEmpty, "the other one still rings")
        #expect(machine.release(.dialog, by: "dialog") == [Change(.dialog, .none), Change(.alert, .foreground)])
        #expect(machine.release(.alert, by: "timer-2") == [Change(.alert, .none), Change(.content, .foreground)])
        #expect(machine.release(.content, by: "music") == [Change(.content, .none)])
        #expect(machine.release(.content, by: "music").isEmpty)
    }

    @Test("A dialog of another device of the room ducks content and alerts, and heals in time")
    func ducks() {
        var machine = Machine()
        _ = machine.acquire(.content, by: "music")
        #expect(
            machine.duck(for: "a", version: 5, until: Self.at(10), at: Self.at(0)) == [Change(.content, .background)])
        #expect(machine.next == Self.at(10))
        #expect(machine.duck(for: "b", version: 1, until: Self.at(20), at: Self.at(1)).isEmpty)
        #expect(machine.restore(from: "b", version: 2, at: Self.at(2)).isEmpty, "the other dialog goes on")
        // The restore of an earlier dialog comes late.
        #expect(machine.restore(from: "a", version: 4, at: Self.at(3)).isEmpty)
        #expect(machine.restore(from: "a", version: 6, at: Self.at(4)) == [Change(.content, .foreground)])
        #expect(machine.duck(for: "a", version: 5, until: Self.at(30), at: Self.at(5)).isEmpty, "it is over")
        // A lost restore.
        _ = machine.duck(for: "a", version: 7, until: Self.at(10), at: Self.at(6))
        #expect(machine.advance(at: Self.at(9)).isEmpty && machine.focus(of: .content) == .background)
        #expect(machine.advance(at: Self.at(10)) == [Change(.content, .foreground)] && machine.next == nil)
        // The own dialog is not ducked.
        _ = machine.duck(for: "a", version: 8, until: Self.at(40), at: Self.at(30))
        #expect(machine.acquire(.dialog, by: "dialog") == [Change(.dialog, .foreground)])
    }

    @Test("Random changes leave one channel in the foreground, and end", arguments: 0..<20 as Range<UInt64>)
    func randomWalk(seed: UInt64) {
        var random = SeededRandom(seed: seed)
        var machine = Machine()
        var shown: [Machine.Channel: Machine.Focus] = [:]
        var now = 0
        for version in 1...10_000 as ClosedRange<UInt64> {
            now += Int.random(in: 0...2, using: &random)
            let channel = Machine.Channel.allCases.randomElement(using: &random) ?? .content
            let source = "source-\(Int.random(in: 0..<40, using: &random))"
            let changes: [Change] =
                switch Int.random(in: 0..<6, using: &random) {
                case 0, 1: machine.acquire(channel, by: "user-\(Int.random(in: 0..<3, using: &random))")
                case 2, 3: machine.release(channel, by: "user-\(Int.random(in: 0..<3, using: &random))")
                case 4:
                    machine.duck(for: source, version: version, until: Self.at(now + 5), at: Self.at(now))
                default: machine.restore(from: source, version: version, at: Self.at(now))
                }
            for change in changes {
                #expect((shown[change.channel] ?? FocusStateMachine.Focus.none) != change.focus, "nothing has changed")
                shown[change.channel] = change.focus
                #expect(shown.values.count { $0 == .foreground } <= 1, "two are in the foreground")
            }
            if let next = machine.next { #expect(next <= Self.at(now + 5)) }
        }
        for channel in Machine.Channel.allCases {
            for user in 0..<3 { _ = machine.release(channel, by: "user-\(user)") }
            #expect(machine.focus(of: channel) == .none)
        }
        _ = machine.advance(at: Self.at(now + 5))
        #expect(machine.next == nil)
    }

    @Test("A device applies the directives, its timers and the phases of its dialog")
    func device() async throws {
        let changes = Mutex<[Change]>([])
        let focus = VoiceFocus { change in changes.withLock { $0.append(change) } }
        func directive(_ name: String, _ payload: String) -> ClientDialogDirective {
            ClientDialogDirective(
                namespace: "Focus", name: name, messageID: "", dialogRequestID: "", payload: payload)
        }
        let running = Task { await focus.endDucks() }
        defer { running.cancel() }
        focus.acquire(.content, by: "music")
        focus.setAlerts([1, 2])
        focus.phaseChanged(.listening)
        focus.phaseChanged(.speaking)
        #expect(focus.focus(of: .dialog) == .foreground && focus.focus(of: .alert) == .background)
        focus.phaseChanged(.idle)
        #expect(focus.focus(of: .alert) == .foreground)
        focus.setAlerts([])
        #expect(focus.focus(of: .content) == .foreground)
        #expect(try focus.take(directive("Duck", #"{"source":"b","version":"3","forMs":"60000"}"#)))
        #expect(focus.focus(of: .content) == .background)
        #expect(try focus.take(directive("Restore", #"{"source":"b","version":"4"}"#)))
        #expect(focus.focus(of: .content) == .foreground)
        #expect(try focus.take(directive("Duck", #"{"source":"b","version":"5","forMs":"50"}"#)))
        try await eventually("the duck ends in time") { focus.focus(of: .content) == .foreground }
        #expect(try !focus.take(directive("Dim", #"{"source":"b","version":"5"}"#)))
        for payload in ["{}", #"{"source":"b"}"#, #"{"source":"b","version":"6","forMs":"0"}"#] {
            #expect(throws: ApusError.self) { try focus.take(directive("Duck", payload)) }
        }
        #expect(changes.withLock { $0.count } == 13, "\(changes.withLock { $0 })")
    }
}
