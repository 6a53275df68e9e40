import ApusSpeech
import Testing

@Suite("Parts of a spoken reply (docs/voice.md)")
struct ReplyPartsTests {
    @Test("A short reply, or one sentence, is one part")
    func one() {
        for text in ["Done.", "", "The hall lamp is on.", "You can say: turn on the lights, or what time is it."] {
            #expect(ReplyParts.parts(of: text) == [text])
        }
    }

    @Test("The first part is one sentence that is not too short, and the others are longer")
    func several() {
        #expect(
            ReplyParts.parts(of: "The hall lamp is offline. It will be on when it is back.") == [
                "The hall lamp is offline.", "It will be on when it is back.",
            ])
        // "OK." alone is not worth a request.
        #expect(
            ReplyParts.parts(of: "OK. The garage gate is closed! Anything else?") == [
                "OK. The garage gate is closed!", "Anything else?",
            ])
        #expect(ReplyParts.parts(of: "前门已经锁好了,请放心。客厅的灯还开着。") == ["前门已经锁好了,请放心。", "客厅的灯还开着。"])
    }

    @Test("A number, an abbreviation and the end of the text end no sentence")
    func ends() {
        for text in [
            "The temperature in the kitchen is 21.5 degrees.", "The alarm is set for half past six a.m. on Wednesday.",
            "Is the version 2.0.1 what you want?  ",
        ] {
            #expect(ReplyParts.parts(of: text).count == 1, "\(ReplyParts.parts(of: text))")
        }
    }

    @Test("The parts are the text, however long it is, and they are bounded", arguments: 1...40)
    func whole(count: Int) {
        let sentences = (0..<count).map { number in
            "Sentence number \(number) says something \(String(repeating: "x", count: number * 7))."
        }
        let text = sentences.joined(separator: " ")
        let parts = ReplyParts.parts(of: text)
        #expect(parts.joined(separator: " ") == text && parts.count <= 8)
        #expect(parts.allSatisfy { !$0.isEmpty } && parts[0] == sentences[0])
    }
}
