import ApusCore
import DequeModule

/// The state of each command that a device has received, so that each is carried out once (IV-D15).
///
/// A command waits for its turn, is begun, has ended, and is done when the cluster has its answer. The newest
/// ``doneMax`` that are done are remembered by their ids: the cluster sends a command again until it has the answer,
/// and hardly later.
///
/// Pure value.
package struct CommandLedger: Sendable, Equatable {
    /// Commands that are done and remembered.
    static let doneMax = 1024

    /// What the device answers.
    package struct Answer: Sendable, Equatable {
        /// 0: it was carried out.
        package var code: Int32
        package var message: String
        /// JSON of an action, or raw data.
        package var content: [UInt8]
        package var isAction: Bool

        init(_ error: ApusError, isAction: Bool) {
            (code, message, content, self.isAction) = (error.code.number, error.message, [], isAction)
        }

        package init(code: Int32, message: String, content: [UInt8], isAction: Bool) {
            (self.code, self.message, self.content, self.isAction) = (code, message, content, isAction)
        }
    }

    package enum State: Sendable, Equatable {
        /// It is in memory only: after a restart the device receives it again.
        case waiting
        /// It is carried out.
        case begun
        /// It has ended, and the cluster has not confirmed the answer.
        case ended(Answer)
        /// It has ended, and the cluster knows.
        case done
    }

    private var states: [String: State] = [:]
    private var done: Deque<String> = []

    /// Commands that are not done.
    package var openCount: Int { states.count - done.count }

    /// What is known of a command; nil if it is new.
    package subscript(id: String) -> State? { states[id] }

    mutating func wait(_ id: String) { if states[id] == nil { states[id] = .waiting } }

    /// Nothing is known of the command any more, which was not begun.
    mutating func forget(_ id: String) { if states[id] == .waiting { states[id] = nil } }

    mutating func apply(_ entry: CommandJournalEntry) {
        guard states[entry.id] != .done else { return }
        switch entry {
        case .begun(let id): states[id] = .begun
        case .ended(let id, let answer): states[id] = .ended(answer)
        case .finished(let id):
            states[id] = .done
            done.append(id)
            while done.count > Self.doneMax { states[done.removeFirst()] = nil }
        }
    }

    /// What a restart has interrupted. The device does not know how far it came.
    package var interrupted: [String] { states.filter { $0.value == .begun }.keys.sorted() }

    /// Answers that the cluster may not have.
    package var answers: [(id: String, answer: Answer)] {
        states.compactMap { id, state in
            if case .ended(let answer) = state { (id, answer) } else { nil }
        }.sorted { $0.id < $1.id }
    }

    /// The entries of a journal from which this ledger is made again.
    var entries: [CommandJournalEntry] {
        done.map { .finished($0) } + interrupted.map { .begun($0) } + answers.map { .ended($0.id, $0.answer) }
    }
}

/// One entry of a journal.
package enum CommandJournalEntry: Sendable, Equatable {
    case begun(String)
    case ended(String, CommandLedger.Answer)
    case finished(String)

    var id: String {
        switch self {
        case .begun(let id), .ended(let id, _), .finished(let id): id
        }
    }

    /// As in a line: the entry, the id, and of an end the kind, code, text and content.
    var text: String {
        switch self {
        case .begun(let id): "B \(id)"
        case .finished(let id): "F \(id)"
        case .ended(let id, let answer):
            "E \(id) \(answer.isAction ? "a" : "d") \(answer.code) \(Hexadecimal.text(answer.message.utf8)) "
                + Hexadecimal.text(answer.content)
        }
    }

    /// Nil if the text is damaged.
    init?(_ text: Substring) {
        let parts = text.split(separator: " ", omittingEmptySubsequences: false)
        guard parts.count >= 2, parts[1].utf8.count == 32 else { return nil }
        let id = String(parts[1])
        switch (parts[0], parts.count) {
        case ("B", 2): self = .begun(id)
        case ("F", 2): self = .finished(id)
        case ("E", 6):
            guard let code = Int32(parts[3]), let message = Hexadecimal.bytes(parts[4]),
                let content = Hexadecimal.bytes(parts[5])
            else { return nil }
            let words = String(decoding: message, as: UTF8.self)
            self = .ended(id, .init(code: code, message: words, content: content, isAction: parts[2] == "a"))
        default: return nil
        }
    }
}
