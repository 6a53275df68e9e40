import ApusCore
import ApusDevice
import Testing

@Suite("The playbacks of a device (IV-C5, IV-C16)")
struct PlaybackTableTests {
    private static func id(_ number: Int) -> String {
        String(repeating: "0", count: 32 - "\(number)".count) + "\(number)"
    }

    private static func code<T>(_ body: () throws(ApusError) -> T) -> ErrorCode? {
        do throws(ApusError) {
            _ = try body()
            return nil
        } catch {
            return error.code
        }
    }

    @Test("Places are bounded, and one client does not take all of them (20007)")
    func places() throws {
        var table = PlaybackTable()
        let now = MonotonicTime.zero
        for number in 0..<3 { #expect(try table.open(Self.id(number), of: "a", now: now) == number) }
        #expect(
            Self.code { () throws(ApusError) in try table.open(Self.id(3), of: "a", now: now) } == .deviceChannelsFull)
        #expect(try table.open(Self.id(4), of: "b", now: now) == 3)
        #expect(
            Self.code { () throws(ApusError) in try table.open(Self.id(5), of: "c", now: now) } == .deviceChannelsFull)
        table.end(1, .hungUp)
        #expect(try table.open(Self.id(5), of: "c", now: now) == 1)
        #expect(table.places == [0, 1, 2, 3])
    }

    @Test("An id is used once, and by its client alone (20012); an unknown one is 20009, one that was ended 20002")
    func ids() throws {
        var table = PlaybackTable()
        let now = MonotonicTime.zero
        let place = try table.open(Self.id(1), of: "a", now: now)
        for client in ["a", "b"] {
            #expect(
                Self.code { () throws(ApusError) in try table.open(Self.id(1), of: client, now: now) }
                    == .duplicateConnection)
        }
        #expect(try table.heard(Self.id(1), of: "a", now: now) == place)
        #expect(
            Self.code { () throws(ApusError) in try table.heard(Self.id(1), of: "b", now: now) } == .duplicateConnection
        )
        #expect(
            Self.code { () throws(ApusError) in try table.heard(Self.id(2), of: "a", now: now) } == .destinationUnknown)
        table.end(place, .hungUp)
        #expect(Self.code { () throws(ApusError) in try table.heard(Self.id(1), of: "a", now: now) } == .hungUp)
        #expect(
            Self.code { () throws(ApusError) in try table.heard(Self.id(1), of: "b", now: now) } == .duplicateConnection
        )
        #expect(
            Self.code { () throws(ApusError) in try table.open(Self.id(1), of: "a", now: now) } == .duplicateConnection)
        // What has ended is remembered for a while, and no longer.
        for number in 100..<200 { table.end(try table.open(Self.id(number), of: "a", now: now), .hungUp) }
        #expect(
            Self.code { () throws(ApusError) in try table.heard(Self.id(1), of: "a", now: now) } == .destinationUnknown)
    }

    @Test("A playback whose player is not heard of for a minute ends with 20008, the others go on")
    func idle() throws {
        var table = PlaybackTable()
        let start = MonotonicTime.zero
        let (silent, heard) = (
            try table.open(Self.id(1), of: "a", now: start), try table.open(Self.id(2), of: "a", now: start)
        )
        _ = try table.heard(Self.id(2), of: "a", now: start + .seconds(40))
        #expect(table.expire(now: start + .milliseconds(59_999)).isEmpty)
        #expect(table.expire(now: start + .seconds(60)) == [silent])
        #expect(table.places == [heard])
        #expect(
            Self.code { () throws(ApusError) in try table.heard(Self.id(1), of: "a", now: start + .seconds(61)) }
                == .connectionIdle)
        #expect(table.expire(now: start + .seconds(100)) == [heard])
        #expect(table.places.isEmpty)
    }
}
