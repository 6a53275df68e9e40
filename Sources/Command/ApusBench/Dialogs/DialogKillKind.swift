package import ApusCore

/// The state in which the death of a node meets a dialog, and what the dialog does then.
package enum DialogKillKind: String, CaseIterable, Sendable {
    case idle
    case beginning
    case listening
    case thinking
    case writing
    case directing
    case speaking
    case finishing
    case asked
    case interrupting
    case stopping
    case timer

    var says: String {
        switch self {
        case .idle: "idle; a sentence later"
        case .beginning: "a sentence is on its way"
        case .listening: "listening; the sentence later"
        case .thinking: "thinking; the device confirms an action later"
        case .writing: "thinking; the device confirms a setting later"
        case .directing: "thinking; the device answers a directive later"
        case .speaking: "speaking; the reply has been given later"
        case .finishing: "speaking; the reply has been given meanwhile"
        case .asked: "listening after a question; the answer later"
        case .interrupting: "thinking; a tap and a sentence meanwhile"
        case .stopping: "thinking; a stop meanwhile"
        case .timer: "a timer that rings about then"
        }
    }

    /// Brought into their state shortly before the kill: they leave it by themselves soon.
    var isShort: Bool {
        switch self {
        case .idle, .beginning, .listening, .asked: false
        case .thinking, .writing, .directing, .speaking, .finishing, .interrupting, .stopping, .timer: true
        }
    }
}

/// What the killed node was to a dialog. It may have been several of these.
package enum DialogKillRole: String, CaseIterable, Sendable {
    case owner, standby
    /// The node of the device's connection.
    case device
    /// The node of the connection of the app that says the sentences.
    case app
    case other

    var says: String {
        switch self {
        case .owner: "of the dialog's owner"
        case .standby: "of the dialog's standby"
        case .device: "of the device's connection"
        case .app: "of the app's connection"
        case .other: "none of these"
        }
    }
}

/// An answer: from the kill, or from what a client did after it, to the reply.
///
/// Pure value.
package struct DialogKillSpan: Sendable {
    let kind: DialogKillKind
    let device: DeviceID
    let milliseconds: Double

    package init(_ kind: DialogKillKind, _ device: DeviceID, milliseconds: Double) {
        (self.kind, self.device, self.milliseconds) = (kind, device, milliseconds)
    }
}

/// A dialog that has another end than what was asked for.
package struct DialogKillMiss: Error {
    /// What was wrong, if anything was.
    package enum Kind: String, CaseIterable, Sendable {
        /// An error with a number, or a reply that it was not done. Allowed.
        case polite
        /// No answer and no error with a number that says why, within the bound.
        case unanswered
        /// Another answer than the sentence has, or another state.
        case wrong
        /// The reply says that it was done, and the device was not asked.
        case missing
        /// An action, a directive or a ring came twice.
        case twice
        /// A timer has not rung.
        case silent
    }

    package let kind: Kind
    /// Such as the number and the message of an error.
    package let text: String

    package init(kind: Kind, text: String) { (self.kind, self.text) = (kind, text) }
}
