public import ApusCore

/// Which sounds of a device are in the foreground: a dialog over an alert over content, as with the Alexa Voice
/// Service.
///
/// A channel is active while something uses it. The first active one of ``Channel/allCases`` is in the foreground, and
/// the other active ones are in the background: content ducks under an alert, and both under a dialog. When the dialog
/// ends, they are as before.
///
/// While another device of the room is in a dialog, alerts and content are in the background as well. Each such duck
/// has an end in time, so a lost message to restore them heals by itself.
///
/// Pure value. Times are passed in.
public struct FocusStateMachine: Sendable {
    /// In the order of their priority.
    public enum Channel: Int, Sendable, Hashable, CaseIterable, Comparable {
        /// A person talks to the device, or it replies.
        case dialog
        /// A timer or an alarm clock rings.
        case alert
        /// Such as music.
        case content

        public static func < (left: Self, right: Self) -> Bool { left.rawValue < right.rawValue }
    }

    public enum Focus: Sendable, Hashable {
        /// As loud as the person wants it.
        case foreground
        /// Quiet, or paused.
        case background
        /// It is over.
        case none
    }

    /// A channel has another focus.
    public struct Change: Sendable, Hashable {
        public let channel: Channel
        public let focus: Focus

        public init(_ channel: Channel, _ focus: Focus) { (self.channel, self.focus) = (channel, focus) }
    }

    private struct Duck: Sendable {
        var version: UInt64
        /// Nil: it is over. A duck of an earlier version that comes late has no effect.
        var until: MonotonicTime?
    }

    /// Those that use a channel, and the devices of the room that are known. What comes beyond has no effect; of
    /// devices the one whose duck ends first is forgotten.
    public static let usersMax = 64
    public static let sourcesMax = 16

    private var users: [Channel: Set<String>] = [:]
    private var ducks: [String: Duck] = [:]
    private var shown: [Channel: Focus] = [:]

    public init() {}

    /// The focus of a channel, as it was reported last.
    public func focus(of channel: Channel) -> Focus { shown[channel] ?? .none }

    /// When ``advance(at:)`` has something to do; nil: never.
    public var next: MonotonicTime? { ducks.values.compactMap(\.until).min() }

    // MARK: - Events

    /// Something uses a channel from now on, such as the player `music`.
    public mutating func acquire(_ channel: Channel, by user: String) -> [Change] {
        if users[channel, default: []].count < Self.usersMax { users[channel, default: []].insert(user) }
        return changes()
    }

    public mutating func release(_ channel: Channel, by user: String) -> [Change] {
        users[channel]?.remove(user)
        return changes()
    }

    /// Another device of the room is in a dialog until a time, unless it ends before.
    ///
    /// - Parameter version: of that dialog: an earlier message that comes late has no effect.
    public mutating func duck(
        for source: String, version: UInt64, until: MonotonicTime, at now: MonotonicTime
    ) -> [Change] {
        set(Duck(version: version, until: until), of: source, at: now)
    }

    /// The dialog of the other device has ended.
    public mutating func restore(from source: String, version: UInt64, at now: MonotonicTime) -> [Change] {
        set(Duck(version: version, until: nil), of: source, at: now)
    }

    /// Time has passed.
    public mutating func advance(at now: MonotonicTime) -> [Change] {
        for (source, duck) in ducks where duck.until.map({ $0 <= now }) ?? false { ducks[source]?.until = nil }
        return changes()
    }

    // MARK: - Parts

    private mutating func set(_ duck: Duck, of source: String, at now: MonotonicTime) -> [Change] {
        if let known = ducks[source], known.version > duck.version { return advance(at: now) }
        if ducks[source] == nil, ducks.count >= Self.sourcesMax {
            let first = ducks.min { ($0.value.until ?? .zero, $0.key) < ($1.value.until ?? .zero, $1.key) }
            if let first { ducks[first.key] = nil }
        }
        ducks[source] = duck
        return advance(at: now)
    }

    private func wanted(_ channel: Channel) -> Focus {
        guard !(users[channel]?.isEmpty ?? true) else { return .none }
        let isUnder = Channel.allCases.contains { $0 < channel && !(users[$0]?.isEmpty ?? true) }
        let isDucked = channel != .dialog && ducks.values.contains { $0.until != nil }
        return isUnder || isDucked ? .background : .foreground
    }

    /// Those that become quieter come first, so two channels are never in the foreground together.
    private mutating func changes() -> [Change] {
        let changed = Channel.allCases.map { Change($0, wanted($0)) }.filter { $0.focus != focus(of: $0.channel) }
        for change in changed { shown[change.channel] = change.focus }
        return changed.filter { $0.focus != .foreground } + changed.filter { $0.focus == .foreground }
    }
}
