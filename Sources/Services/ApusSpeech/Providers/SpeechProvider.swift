import ApusCore
import ApusWyoming
import ApusWyomingClient
import NIOCore
import Synchronization

/// One configured speech provider: what it offers, and which grammars it has received.
///
/// Concurrency model: any thread; a `Mutex` guards the state.
final class SpeechProvider: Sendable {
    private struct State {
        var info: WyomingInfo?
        /// It has failed, and nothing has succeeded since.
        var isSuspect = false
        /// The hashes of the grammars that the provider has, the latest last.
        var grammars: [String] = []
    }

    /// The most grammars of one provider that are remembered.
    private static let grammarsMax = 64
    private static let describeTimeout = Duration.seconds(1)

    let address: WyomingAddress
    let group: any EventLoopGroup
    private let state = Mutex(State())

    init(_ address: WyomingAddress, on group: any EventLoopGroup) { (self.address, self.group) = (address, group) }

    /// The provider has answered its last question.
    var isUp: Bool { state.withLock { $0.info != nil } }

    /// Asks the provider what it offers.
    func look() async {
        var info: WyomingInfo?
        if let connection = try? await WyomingConnection.open(address, on: group) {
            connection.send(.describe)
            let deadline = MonotonicTime.now() + Self.describeTimeout
            while info == nil, let messages = try? await connection.next(until: deadline) {
                for case .info(let new) in messages { info = new }
            }
            connection.close()
        }
        state.withLock { [info] state in
            if info == nil { state.grammars = [] }
            state.info = info
        }
    }

    /// It failed, so others are asked first. It stays in use: where it is the only one, one utterance that it could not
    /// hear in time is no reason to refuse those of all other devices.
    func failed() {
        state.withLock { ($0.isSuspect, $0.grammars) = (true, []) }
    }

    /// It has done what it was asked for.
    func succeeded() {
        state.withLock { $0.isSuspect = false }
    }

    var isSuspect: Bool { state.withLock(\.isSuspect) }

    func hears(_ language: String) -> Bool {
        state.withLock { $0.info.map { Self.offers($0.recognition, language) } ?? false }
    }

    func speaks(_ language: String) -> Bool {
        state.withLock { $0.info.map { Self.offers($0.speech, language) } ?? false }
    }

    /// A model for the language, or for the language without its region. A model without languages is for all.
    private static func offers(_ programs: [WyomingInfo.Program], _ language: String) -> Bool {
        let wanted = Self.base(language)
        return programs.contains { program in
            program.artifact.isInstalled
                && program.models.contains { model in
                    model.artifact.isInstalled
                        && (model.languages.isEmpty || model.languages.contains { base($0).isExactly(wanted) })
                }
        }
    }

    private static func base(_ language: String) -> String {
        language.lowercased().split { $0 == "-" || $0 == "_" }.first.map { String($0) } ?? ""
    }

    /// The grammar as it is sent to the provider: with its sentences only if the provider does not have them.
    func form(of grammar: WyomingGrammar) -> WyomingGrammar {
        let isKnown = state.withLock { $0.grammars.contains { $0.isExactly(grammar.hash) } }
        return isKnown ? grammar.withoutSentences : grammar
    }

    func has(_ grammar: WyomingGrammar, _ isThere: Bool) {
        state.withLock { state in
            state.grammars.removeAll { $0.isExactly(grammar.hash) }
            if isThere { state.grammars = state.grammars.suffix(Self.grammarsMax - 1) + [grammar.hash] }
        }
    }
}
