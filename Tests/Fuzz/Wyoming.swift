import ApusCore
import ApusWyoming
import NIOCore

/// A stream of Wyoming events is read the same whole and in pieces, nothing beyond its limits is held, and an event
/// that is written again is the same. So is its message.
func fuzzWyoming(_ input: [UInt8]) {
    let whole = read(input, step: max(1, input.count))
    precondition(whole == read(input, step: 3), "a stream is read otherwise in pieces")
    for event in whole.events {
        var bytes = ByteBuffer()
        guard (try? event.encode(into: &bytes)) != nil else {
            preconditionFailure("an event that was read cannot be written")
        }
        var decoder = WyomingDecoder()
        decoder.append(bytes)
        precondition((try? decoder.next()) == event, "an event has other data when it is written again")
        guard let message = try? WyomingMessage(event) else { continue }
        precondition((try? WyomingMessage(message.event)) == message, "a message is not the same when written again")
    }
}

private struct Found: Equatable {
    var events: [WyomingEvent] = []
    var error: ApusError?
}

private func read(_ input: [UInt8], step: Int) -> Found {
    var decoder = WyomingDecoder()
    var found = Found()
    do {
        for start in stride(from: 0, to: input.count, by: step) {
            decoder.append(ByteBuffer(bytes: input[start..<min(start + step, input.count)]))
            while let event = try decoder.next() { found.events.append(event) }
        }
    } catch { found.error = error }
    precondition(decoder.heldByteCount <= input.count, "more is held than came")
    return found
}
