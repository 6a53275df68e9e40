import ApusCore
import ApusListener
import Testing

@Suite("The keepalive clock")
struct KeepaliveClockTests {
    private func time(_ milliseconds: Int64) -> MonotonicTime { .zero + .milliseconds(milliseconds) }

    @Test("A connection with a stream is silent after the keepalive; one without is never")
    func silence() {
        var clock = KeepaliveClock(keepalive: .milliseconds(80))
        let viewer = clock.add(now: time(0))
        _ = clock.add(now: time(0))
        clock.setStreams(viewer, isStreaming: true, isPlaying: true)
        #expect(clock.silent(now: time(71)) == [])
        #expect(clock.silent(now: time(80)) == [viewer])
        _ = clock.sent(viewer, now: time(80))
        #expect(clock.silent(now: time(151)) == [])
        #expect(clock.lastSent(viewer) == time(80))
        clock.setStreams(viewer, isStreaming: false, isPlaying: false)
        #expect(clock.silent(now: time(999)) == [])
    }

    @Test("Only a moment at which every playing connection was sent something puts the clock off")
    func bursts() {
        var clock = KeepaliveClock(keepalive: .milliseconds(80))
        let slots = (0..<3).map { _ in clock.add(now: time(0)) }
        for slot in slots { clock.setStreams(slot, isStreaming: true, isPlaying: true) }
        // A camera's connection gets its acknowledgements at other times.
        clock.setStreams(clock.add(now: time(0)), isStreaming: true, isPlaying: false)
        let moments: [(slot: Int, at: Int64)] = [(0, 10), (0, 10), (1, 10), (2, 10), (0, 50), (1, 51), (2, 51)]
        let answers = moments.map { clock.sent(slots[$0.slot], now: time($0.at)) }
        // The second is another batch to the same connection; of the last three one came earlier than the others.
        #expect(answers == [false, false, false, true, false, false, false])
    }

    @Test("The next look comes when the longest silence is over, and one that stays silent does not make it run hot")
    func nextLook() {
        var clock = KeepaliveClock(keepalive: .milliseconds(80))
        #expect(clock.nextLook(now: time(0)) == nil)
        let first = clock.add(now: time(0))
        let second = clock.add(now: time(0))
        clock.setStreams(first, isStreaming: true, isPlaying: true)
        clock.setStreams(second, isStreaming: true, isPlaying: true)
        _ = clock.sent(first, now: time(60))
        _ = clock.sent(second, now: time(90))
        #expect(clock.nextLook(now: time(95)) == time(140))
        #expect(clock.silent(now: time(500)) == [first, second])
        #expect(clock.nextLook(now: time(500)) == time(540))
    }

    @Test(
        "However their last bytes lie, no connection is silent for longer than the keepalive, and each hears one a time"
    )
    func bound() {
        var clock = KeepaliveClock(keepalive: .milliseconds(80))
        let slots = (0..<8).map { _ in clock.add(now: time(0)) }
        for slot in slots {
            clock.setStreams(slot, isStreaming: true, isPlaying: true)
            _ = clock.sent(slot, now: time(Int64(slot) * 11))
        }
        var count = 0
        var now = time(80)
        while now < time(2088) {
            for slot in clock.silent(now: now) {
                #expect(now - clock.lastSent(slot) <= .milliseconds(80))
                _ = clock.sent(slot, now: now)
                count += 1
            }
            guard let next = clock.nextLook(now: now) else { break }
            now = next
        }
        // 2 s hold 25 keepalives for each; sent early, some more.
        #expect((200...230).contains(count))
    }

    @Test("A place that was given back is used again, and knows nothing of who had it")
    func reuse() {
        var clock = KeepaliveClock(keepalive: .milliseconds(80))
        let slot = clock.add(now: time(0))
        clock.setStreams(slot, isStreaming: true, isPlaying: true)
        clock.remove(slot)
        #expect(clock.nextLook(now: time(0)) == nil)
        let again = clock.add(now: time(7))
        #expect(again == slot)
        #expect(clock.lastSent(slot) == time(7))
        #expect(clock.silent(now: time(999)) == [])
    }
}
