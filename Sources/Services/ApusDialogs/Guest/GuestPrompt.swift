import ApusContract
package import ApusCore
import ApusGrammar
import Foundation

/// The request to a chat completions server about a sentence (docs/voice.md). It has names and texts, and no ids.
///
/// Pure value.
package struct GuestPrompt: Sendable {
    private let reader: SentenceReader
    private let text: String
    private let turns: [DialogTurn]

    /// - Parameters:
    ///   - turns: the last ones of the dialog. Those of the account that are not too old go along.
    package init(_ reader: SentenceReader, _ text: String, after turns: [DialogTurn], of account: AccountID) {
        (self.reader, self.text) = (reader, text)
        self.turns = Self.history(turns, of: account, at: reader.now)
    }

    /// The body of the request, as JSON.
    package func json(model: String, tokensMax: Int) -> String {
        func message(_ role: String, _ text: String) -> JSON {
            .object([("role", .string(role)), ("content", .string(text))])
        }
        let history = turns.flatMap { [message("user", $0.text), message("assistant", $0.plan.reply)] }
        let names = GuestNames(reader.home)
        return JSON.object([
            ("model", .string(model)),
            ("messages", .array([message("system", instruction)] + history + [message("user", text)])),
            ("tools", .array(GuestTool.allCases.compactMap { $0.definition(names) })),
            ("tool_choice", .string("auto")), ("max_tokens", .int(tokensMax)), ("temperature", .int(0)),
            ("stream", .bool(false)),
        ]).text
    }

    /// The newest turns within the bounds, in their order. A turn without a reply has nothing to tell.
    private static func history(_ turns: [DialogTurn], of account: AccountID, at now: Int64) -> [DialogTurn] {
        var (found, byteCount): ([DialogTurn], Int) = ([], 0)
        for turn in turns.suffix(DialogConfiguration.turnsMax).reversed() {
            guard turn.speaker.account.isExactly(account.rawValue), !turn.text.isEmpty, !turn.plan.reply.isEmpty,
                turn.beganMs > now - GuestConfiguration.historyTime
            else { continue }
            byteCount += turn.text.utf8.count + turn.plan.reply.utf8.count
            guard byteCount <= GuestConfiguration.historyByteCountMax else { break }
            found.append(turn)
        }
        return found.reversed()
    }

    private var instruction: String {
        let time = HomeTime(reader.now, reader.home.timeZone)
        func two(_ number: Int) -> String { number < 10 ? "0\(number)" : "\(number)" }
        let day = HomeTime.days[time.weekday].capitalized
        let place =
            reader.area.flatMap { reader.home.area($0)?.names.first }.map { " The person is here: \($0)." } ?? ""
        return """
            You are the voice of a home. Reply in \(reader.language == .chinese ? "Chinese" : "English"), with one or \
            two short sentences without formatting. It is \(day), \
            \(time.year)-\(two(time.month))-\(two(time.day)), \(two(time.hour)):\(time.minuteText).\(place) Only the \
            tools act on the home and read it. Call them for what the person wants, and never say that something was \
            done, or how it is, without them. If no tool does it and you cannot answer, say so.
            """
    }
}
