package import ApusClientAPI
import ApusCluster
package import ApusContract
package import ApusCore
import ApusGrammar
import ApusSessions
import SwiftProtobuf

// What the service of spoken dialogs uses.

/// What can be said in a home, in one language.
///
/// Pure value.
package struct DialogGrammar: Sendable {
    /// Changes with the home.
    package struct Key: Hashable, Sendable {
        let account: String
        let language: String
        let revision: UInt64
        /// With the operator's sentences, which are read again at SIGHUP.
        let sentences: UInt64
        let isAsked: Bool
    }

    package let key: Key
    /// Such as `en`.
    package let language: String
    let grammar: Grammar

    /// The maximum number of sentences of one template: a number in percent has 101.
    private static let templateMax = 120
    /// A "no" that answers nothing is a word that was heard wrongly.
    private static let answers = [VoiceIntent.yes.rawValue, VoiceIntent.no.rawValue]

    private var leftOut: [String] { key.isAsked ? [] : Self.answers }

    /// The sentences as they are said, with numbers as words; of each template the shortest ones.
    ///
    /// - Parameters:
    ///   - byteCountMax: of all, with four bytes more for each.
    ///   - sentenceByteCountMax: longer ones are left out.
    package func sentences(countMax: Int, byteCountMax: Int, sentenceByteCountMax: Int) -> [String] {
        var byteCount = 0
        let all = grammar.spokenSentences(countMax: countMax, templateMax: Self.templateMax, without: leftOut)
        return all.filter { text in
            guard text.utf8.count <= sentenceByteCountMax, byteCount + text.utf8.count + 4 <= byteCountMax else {
                return false
            }
            byteCount += text.utf8.count + 4
            return true
        }
    }

    /// All sentences, as a grammar in JSGF; nil if it is longer.
    package func jsgf(byteCountMax: Int) -> String? {
        try? grammar.jsgf(byteCountMax: byteCountMax, without: leftOut)
    }

    /// True if no sentence that begins with this one has another meaning.
    package func isComplete(_ text: String) -> Bool { grammar.isComplete(text) }

    /// True if a text is a sentence of the home, whatever the place of the device.
    package func has(_ text: String) -> Bool { !text.isEmpty && !grammar.match(text).all.isEmpty }
}

/// What a dialog says to a device that begins to hear a sentence.
package enum DialogHearing: Sendable {
    /// The sentence was carried out before.
    case ended(ClientDialogTurn)
    /// The dialog listens, with this id. `isAsked`: it has asked a person a question. `stops`: the number of its stops.
    case listens(String, isAsked: Bool, stops: UInt64)
}

extension DialogService {
    /// The longest sentence, in bytes.
    package static var textByteCountMax: Int { DialogConfiguration.textByteCountMax }

    /// What can be said in the home of an account.
    ///
    /// - Parameters:
    ///   - language: empty: that of the home.
    ///   - isAsked: "yes" and "no" can be said.
    /// - Throws: 21031 for a language that there is not; 10021 if the home cannot be read.
    package func grammar(
        _ language: String, _ account: AccountID, isAsked: Bool
    ) async throws(ApusError) -> DialogGrammar {
        if !language.isEmpty { _ = try DialogLanguage(checking: language) }
        let sentences = sentencesVersion
        let reader = try await reader(of: language, account, DeviceID(unchecked: "-"), lastReply: "")
        let tag = reader.language.grammar.tag
        let key = DialogGrammar.Key(
            account: account.rawValue, language: tag, revision: reader.home.content.revision, sentences: sentences,
            isAsked: isAsked)
        return DialogGrammar(key: key, language: tag, grammar: reader.grammar)
    }

    /// A device begins to hear a sentence: its dialog listens, unless it does already after a tap or a wake phrase.
    ///
    /// - Parameters:
    ///   - onlyLooks: the dialog does not listen yet. The id of the listening is empty.
    ///   - stops: how often the dialog was stopped when the person began to speak; nil: that is now.
    /// - Throws: 10030 if the dialog was stopped since then; otherwise as
    ///   ``say(_:id:on:language:context:heard:_:)``.
    package func hears(
        _ id: String, _ language: String, on device: DeviceID, onlyLooks: Bool = false, stops: UInt64? = nil,
        _ call: ClientCall
    ) async throws(ApusError) -> DialogHearing {
        let id = try Self.id(id, call)
        let since = try await access(to: device, call.session).dataSince
        let look = DialogLook.with {
            $0.dataSinceMs = since
            ($0.account, $0.access) = (call.session.account.rawValue, call.session.access.rawValue)
        }
        let seen = try await ref(device).ask(look, timeout: try call.timeLeft())
        if let known = seen.turns.last(where: { $0.id.isExactly(id) }) {
            return known.endedMs > 0
                ? .ended(ClientDialogTurn(known))
                : .listens(known.heard, isAsked: seen.hasQuestion, stops: seen.stops)
        }
        if onlyLooks { return .listens("", isAsked: seen.hasQuestion, stops: seen.stops) }
        guard stops == nil || stops == seen.stops else {
            throw ApusError(.versionConflict, "the dialog was stopped while the person spoke")
        }
        // The listening has an id of its own: after a question the dialog listens again, with that of the sentence.
        let own = Hexadecimal.text(RequestID("hears/\(id)", of: device, call.session.account.rawValue, step: 0).bytes)
        let home = try await homes.home(of: call.session.account)
        let state = try await listen(try listening(own, language, home, call), joins: true, device, since, call)
        // A repetition after a stop does not listen, and its sentence is refused.
        let heard = state.phase == .listening ? state.listening.id : own
        return .listens(heard, isAsked: seen.hasQuestion, stops: seen.stops)
    }

    /// A listening has heard nothing that can be carried out: the dialog is idle, if it listens with this id.
    package func hearsNothing(_ listening: String, on device: DeviceID) async {
        // Otherwise the listening ends with its time.
        _ = try? await ref(device).ask(DialogYield.with { $0.listening = listening }, timeout: Self.endTimeout)
    }

    private static let endTimeout = Duration.seconds(1)

    /// A device has heard a sentence: carries it out.
    ///
    /// - Parameter listening: with which it was heard.
    /// - Throws: 8002, 8003, 12004 and 20011 if the device's account may not; 10007 over a limit; 10030 if the
    ///   listening is over; 21000 if the id was of another sentence.
    package func say(
        _ text: String, id: String, on device: DeviceID, language: String, context: String, heard listening: String,
        _ call: ClientCall
    ) async throws(ApusError) -> ClientDialogTurn {
        let id = try Self.id(id, call)
        return ClientDialogTurn(
            try await say(
                text, id: id, to: device, language: language, context: context, heard: listening, call))
    }
}
