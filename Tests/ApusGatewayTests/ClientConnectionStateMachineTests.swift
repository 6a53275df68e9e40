import ApusCore
import ApusGateway
import ApusWire
import Testing

@Suite("What a client's connection may do (D6)")
struct ClientConnectionStateMachineTests {
    private static let timing = ClientConnectionStateMachine.Timing(
        handshakeTimeout: .seconds(5), keepalive: .seconds(4), streamKeepalive: .milliseconds(60),
        idleTimeout: .seconds(12),
        slowReaderTimeout: .seconds(10))

    private func time(_ milliseconds: UInt64) -> MonotonicTime { MonotonicTime(nanoseconds: milliseconds * 1_000_000) }

    private func fresh() -> ClientConnectionStateMachine {
        ClientConnectionStateMachine(timing: Self.timing, now: time(0))
    }

    private func open() -> ClientConnectionStateMachine {
        var machine = fresh()
        #expect(machine.received(.hello, now: time(1)) == .authenticate)
        machine.admitted(now: time(2))
        #expect(machine.isOpen)
        return machine
    }

    @Test(
        "Before the hello every other frame closes the connection",
        arguments: [FrameKind.ping, .media, .request, .tell, .welcome, FrameKind(rawValue: 0xff)])
    func helloFirst(kind: FrameKind) {
        var machine = fresh()
        #expect(machine.received(kind, now: time(1)) == .close(ApusError(.malformed)))
    }

    @Test(
        "Nothing is taken between the hello and the welcome, not even a second hello",
        arguments: [FrameKind.hello, .request])
    func authenticating(kind: FrameKind) {
        var machine = fresh()
        _ = machine.received(.hello, now: time(1))
        #expect(machine.received(kind, now: time(2)) == .close(ApusError(.malformed)))
        #expect(!machine.isOpen)
    }

    @Test(
        "An admitted client's frames are served, answered or refused by their kind",
        arguments: [
            (FrameKind.request, ClientConnectionStateMachine.OnFrame.serve), (.media, .serve), (.goodbye, .serve),
            (.ping, .pong), (.pong, .ignore), (.hello, .close(ApusError(.malformed))),
            (.response, .close(ApusError(.malformed))), (FrameKind(rawValue: 0x77), .close(ApusError(.malformed))),
        ])
    func kinds(kind: FrameKind, expected: ClientConnectionStateMachine.OnFrame) {
        var machine = open()
        #expect(machine.received(kind, now: time(3)) == expected)
    }

    @Test(
        "A connection that never finishes its handshake is closed, with or without a hello", arguments: [true, false])
    func handshakeTimeout(saysHello: Bool) {
        var machine = fresh()
        if saysHello { _ = machine.received(.hello, now: time(4900)) }
        #expect(machine.tick(now: time(4999), lastSent: time(0)) == .nothing)
        #expect(machine.tick(now: time(5000), lastSent: time(0)) == .close(ApusError(.handshakeTimeout)))
    }

    @Test("A client that came in while its welcome was made is not admitted after it was closed")
    func admittedTooLate() {
        var machine = fresh()
        _ = machine.received(.hello, now: time(1))
        machine.closed()
        machine.admitted(now: time(2))
        #expect(!machine.isOpen)
        #expect(machine.received(.request, now: time(3)) == .ignore)
        #expect(machine.tick(now: time(60_000), lastSent: time(0)) == .nothing)
    }

    @Test("The node is never silent for longer than its keepalive, which is shorter while a stream is open (D7)")
    func keepalive() {
        var machine = open()
        #expect(machine.tick(now: time(3999), lastSent: time(0)) == .nothing)
        #expect(machine.tick(now: time(4000), lastSent: time(0)) == .keepalive)
        machine.streamsChanged(count: 1, now: time(4000))
        #expect(machine.tick(now: time(4059), lastSent: time(4000)) == .nothing)
        #expect(machine.tick(now: time(4060), lastSent: time(4000)) == .keepalive)
    }

    @Test("A session ends with its token, by the cluster's clock, with 12002 (IV-A6)")
    func tokenEnds() {
        var machine = fresh()
        _ = machine.received(.hello, now: time(1))
        #expect(machine.wallClockRead(seconds: .max) == .nothing, "before the welcome nobody has a token")
        machine.admitted(now: time(2), tokenExpires: 1_000)
        #expect(machine.wallClockRead(seconds: 999) == .nothing)
        #expect(machine.wallClockRead(seconds: 1_000) == .close(ApusError(.tokenExpired)))
        machine.closed()
        #expect(machine.wallClockRead(seconds: 1_000) == .nothing)
    }

    @Test("A client that is silent, or never reads, is closed")
    func closes() {
        var machine = open()
        #expect(machine.tick(now: time(12_002), lastSent: time(0)) == .close(ApusError(.idleTimeout)))
        var viewer = open()
        viewer.streamsChanged(count: 1, now: time(2))
        #expect(viewer.tick(now: time(72_001), lastSent: time(72_000)) == .nothing)
        #expect(viewer.tick(now: time(72_002), lastSent: time(72_000)) == .close(ApusError(.idleTimeout)))
        // Its node ends the stream: the shorter time begins then, since it had no reason to speak before.
        var former = open()
        former.streamsChanged(count: 1, now: time(2))
        former.streamsChanged(count: 0, now: time(60_000))
        #expect(former.tick(now: time(71_999), lastSent: time(71_999)) == .nothing)
        #expect(former.tick(now: time(72_000), lastSent: time(72_000)) == .close(ApusError(.idleTimeout)))
        var slow = open()
        slow.writabilityChanged(isWritable: false, now: time(100))
        slow.writabilityChanged(isWritable: false, now: time(5000))
        _ = slow.received(.ping, now: time(10_000))
        #expect(slow.tick(now: time(10_099), lastSent: time(0)) == .nothing)
        #expect(slow.tick(now: time(10_100), lastSent: time(0)) == .close(ApusError(.slowReader)))
        slow.writabilityChanged(isWritable: true, now: time(10_100))
        #expect(slow.tick(now: time(10_101), lastSent: time(0)) == .keepalive)
    }
}
