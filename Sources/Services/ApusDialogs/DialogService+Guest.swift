import ApusContract
import ApusCore

extension DialogService {
    /// Asks the language model about a sentence that the grammar rejects, if there is one and the home wants it.
    func guestAnswer(
        _ text: String, _ reader: SentenceReader, after turns: [DialogTurn], of account: AccountID,
        until end: MonotonicTime
    ) async -> GuestAnswer {
        guard let guest, reader.home.content.model, text.contains(where: { $0.isLetter || $0.isNumber }) else {
            return .nothing
        }
        return await guest.answer(GuestPrompt(reader, text, after: turns, of: account), of: account, until: end)
    }
}
