import ApusCore

/// The id of an event for a hook: its time in Unix milliseconds, and a number in hexadecimal digits, such as
/// `1767607964123-9f3c01d27b5a6e48`.
package struct HookEventID: Sendable, Hashable, CustomStringConvertible {
    let timeMs: Int64
    let number: UInt64

    package var description: String { "\(timeMs)-" + String(number, radix: 16) }

    init(timeMs: Int64, number: UInt64) { (self.timeMs, self.number) = (timeMs, number) }

    /// - Throws: 21031 if the text is not an id.
    init(checking text: String) throws(ApusError) {
        let parts = text.split(separator: "-", omittingEmptySubsequences: false)
        guard parts.count == 2, let time = Int64(parts[0]), let number = UInt64(parts[1], radix: 16) else {
            throw ApusError(.badParameter, "an event's id has its time, a hyphen and hexadecimal digits")
        }
        self.init(timeMs: time, number: number)
    }
}

extension HookStoredEvent {
    var id: HookEventID { HookEventID(timeMs: timeMs, number: number) }
}
