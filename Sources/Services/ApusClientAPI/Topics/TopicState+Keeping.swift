import ApusCore
import SwiftProtobuf

/// What a topic keeps of its events (docs/events.md).
///
/// If there are too many, or too many bytes, the sender that has most of them loses its oldest event, so a sender that
/// publishes without end makes the topic forget its own events. The senders that are not the topic's own, such as the
/// devices of other accounts, have an eighth together: they come first to lose, once they have more.
extension TopicState {
    /// Of the events, and of their bytes.
    package static let foreignPart = 8

    /// Adds an event.
    package mutating func keep(_ entry: TopicEntry, _ retention: TopicRetention) {
        guard retention.eventsMax > 0 else { return }
        entries.append(entry)
        while entries.count > 1 {
            if entries.count > retention.eventsMax {
                entries.remove(at: loser(of: retention.eventsMax) { _ in 1 })
            } else if entries.reduce(0, { $0 + $1.message.count }) > retention.byteCountMax {
                entries.remove(at: loser(of: retention.byteCountMax) { $0.message.count })
            } else {
                return
            }
        }
    }

    /// The oldest event of the sender that has most.
    ///
    /// - Parameter weight: what counts of an event.
    private func loser(of most: Int, _ weight: (TopicEntry) -> Int) -> Int {
        let foreign = entries.filter(\.foreign)
        let isForeign = foreign.reduce(0) { $0 + weight($1) } > most / Self.foreignPart
        let candidates = isForeign ? foreign : entries
        let sums = Dictionary(grouping: candidates, by: \.sender).mapValues { $0.reduce(0) { $0 + weight($1) } }
        let largest = sums.values.max() ?? 0
        return entries.firstIndex { (!isForeign || $0.foreign) && sums[$0.sender] == largest } ?? entries.startIndex
    }

    /// The events from a number on, up to the next gap. Events of one sender may be dropped before those of others, so
    /// there can be gaps between them: a reader that asks for what is in a gap receives what follows it, as missed.
    package func page(log wanted: UInt64, from: UInt64, countMax: Int) -> TopicReadReply {
        let isHere = wanted == log && from <= next
        let start = isHere ? from : 0
        var found: [TopicEntry] = []
        for entry in entries.drop(while: { $0.sequence < start }).prefix(countMax) {
            if let last = found.last, entry.sequence != last.sequence + 1 { break }
            found.append(entry)
        }
        return .with {
            ($0.log, $0.next, $0.entries) = (log, next, found)
            $0.missed = !isHere || from < found.first?.sequence ?? next
        }
    }
}
