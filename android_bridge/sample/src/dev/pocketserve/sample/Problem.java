package dev.pocketserve.sample;

import dev.pocketserve.bridge.PocketServeException;

/** The explanation of a failed call: a title, help, and the action of the button. */
enum Problem {
    UNREACHABLE(R.string.problem_unreachable, R.string.problem_unreachable_help, Action.START),
    TOKEN(R.string.problem_token, R.string.problem_token_help, Action.SETTINGS),
    UNTRUSTED(R.string.problem_untrusted, R.string.problem_untrusted_help, Action.SETTINGS),
    FORBIDDEN(R.string.problem_forbidden, R.string.problem_forbidden_help, Action.NONE),
    OTHER(R.string.problem_other, 0, Action.NONE);

    /** The action of the button. */
    enum Action { START, SETTINGS, CAMERA, SYSTEM_SETTINGS, NONE }

    final int title;
    /** 0: the error's own sentence is shown. */
    final int help;
    final Action action;

    Problem(int title, int help, Action action) {
        this.title = title;
        this.help = help;
        this.action = action;
    }

    /** Returns whether this app ended the call, so no message is needed. */
    static boolean isOurs(PocketServeException error) {
        return PocketServeException.CLOSED.equals(error.getCode())
                || PocketServeException.CANCELLED.equals(error.getCode());
    }

    static Problem of(PocketServeException error) {
        switch (error.getCode()) {
            case PocketServeException.SERVER_UNREACHABLE:
            case PocketServeException.CONNECTION_LOST:
                return UNREACHABLE;
            case PocketServeException.TOKEN_UNKNOWN:
            case PocketServeException.TOKEN_UNREADABLE:
                return TOKEN;
            case PocketServeException.NOT_OUR_SERVER:
            case PocketServeException.BAD_ANSWER:
                return UNTRUSTED;
            case PocketServeException.LOOPBACK_FORBIDDEN:
            case PocketServeException.CLEARTEXT_FORBIDDEN:
                return FORBIDDEN;
            default:
                return OTHER;
        }
    }
}
