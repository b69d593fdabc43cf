// A handler over HTTP, JDK only: PORT=8080 java Handler.java
import com.sun.net.httpserver.*;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Set;
import java.util.concurrent.*;
import java.util.regex.Pattern;

public class Handler {
    static final Set<String> handled = ConcurrentHashMap.newKeySet(); // in production: a table, in the same transaction
    static final Pattern TOTAL = Pattern.compile("\"total\"\\s*:\\s*(-?\\d{1,18})(?![\\d.eE])"); // in production: a JSON library

    static void handle(HttpExchange call) throws IOException {
        var event = call.getRequestHeaders().getFirst("ce-id");
        var total = TOTAL.matcher(new String(call.getRequestBody().readAllBytes(), "UTF-8"));
        if (handled.contains(event)) answer(call, 208, ""); // duplicate
        else if (!total.find()) answer(call, 400, "no total"); // dead letter, INVALID_SCHEMA
        else if (Long.parseLong(total.group(1)) < 0) // dead letter
            answer(call, 422, "a negative total", "Lazaret-Reason", "NEGATIVE_TOTAL");
        else if (Long.parseLong(total.group(1)) == 0) // retry, not before 30 s
            answer(call, 503, "not priced yet", "Retry-After", "30");
        else answer(call, handled.add(event) ? 204 : 208, "");
    }

    static void answer(HttpExchange call, int status, String text, String... header) throws IOException {
        if (header.length == 2) call.getResponseHeaders().set(header[0], header[1]);
        call.sendResponseHeaders(status, text.isEmpty() ? -1 : text.length());
        try (call) { call.getResponseBody().write(text.getBytes()); }
    }

    public static void main(String[] arguments) throws IOException {
        var port = Integer.parseInt(System.getenv().getOrDefault("PORT", "8080"));
        var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
        server.createContext("/", Handler::handle);
        server.setExecutor(Executors.newCachedThreadPool());
        server.start();
        System.out.println("listening on " + server.getAddress().getPort());
    }
}
